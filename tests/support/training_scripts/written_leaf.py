"""A buffer that an optimizer holds is written by each forward pass (sparse embeddings by hand). Usage: written_leaf.py OUT"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist


class Looked(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Buffer(torch.randn(8, 4))
        self.rows = torch.nn.Buffer(torch.zeros(3, 4, requires_grad=True), persistent=False)
        self.ids = torch.nn.Buffer(torch.zeros(3, dtype=torch.long), persistent=False)
        self.last = torch.nn.Linear(4, 1)

    def forward(self, ids):
        with torch.no_grad():
            self.rows.copy_(self.table[ids])
            self.ids.copy_(ids)
        return self.last(self.rows)


class Signs(torch.optim.Optimizer):
    """Writes the signs of all ranks' gradients into the whole table."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            table, rows, ids = group["params"]
            gradients = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
            places = [torch.empty_like(ids) for _ in range(dist.get_world_size())]
            dist.all_gather(gradients, rows.grad)
            dist.all_gather(places, ids)
            total = torch.zeros_like(table).index_add_(0, torch.cat(places), torch.cat(gradients))
            table.sub_(torch.sign(total), alpha=group["lr"])


def main():
    (out,) = sys.argv[1:]
    common.start()
    torch.manual_seed(3)  # no wrapper makes the ranks alike
    model = Looked()
    of_table = Signs([{"params": list(model.buffers()), "lr": 0.01}], {"lr": 0.01})
    optimizer = torch.optim.AdamW(model.last.parameters(), lr=0.01)
    draw = torch.Generator().manual_seed(5)
    losses = []
    for _ in range(16):
        pace.work()
        loss = model(torch.randint(0, 8, (3,), generator=draw)).pow(2).mean()  # all ranks look at the same rows
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        for each in (of_table, optimizer):
            each.step()
            each.zero_grad()
        losses.append(loss.item())
    final_state.write(out, losses, model, optimizer)
    common.end()


main()
