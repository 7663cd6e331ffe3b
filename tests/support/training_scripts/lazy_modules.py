"""Parameters that get their shape in the first forward pass, behind the first head of the loop. Usage: lazy_modules.py OUT HOW

HOW: lazy modules of torch (`torch`), a module that gives its parameter a shape by itself (`own`), or those of torch with one beside
them that no step calls (`unused`).
"""

import sys

import common
import final_state
import pace
import torch
import torch.distributed as dist

WIDE, STEPS = 200, 24

how = sys.argv[2]
rank, world_size = common.start()


class Scale(torch.nn.Module):
    """Gives its parameter a shape when it sees what it is to scale."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.UninitializedParameter()

    def forward(self, x):
        if torch.nn.parameter.is_lazy(self.weight):
            self.weight.materialize((x.shape[-1],))
            with torch.no_grad():
                self.weight.normal_(1, 0.1)
        return x * self.weight


torch.manual_seed(3)
first = [Scale(), torch.nn.Linear(6, WIDE)] if how == "own" else [torch.nn.LazyLinear(WIDE), torch.nn.LazyBatchNorm1d()]
model = torch.nn.Sequential(*first, torch.nn.Linear(WIDE, WIDE), torch.nn.ReLU(), torch.nn.Linear(WIDE, 1))
if how == "unused":
    model.register_module("head", torch.nn.LazyLinear(3))
called = model if how != "unused" else model[:5]
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
own = torch.Generator().manual_seed(100 + rank)
x, y = torch.randn(8, 6, generator=own), torch.randn(8, 1, generator=own)
losses = []
for step in range(1, STEPS + 1):
    pace.work()
    optimizer.zero_grad()
    loss = ((called(x + step / 10) - y) ** 2).mean()
    loss.backward()
    for parameter in called.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world_size
    optimizer.step()
    losses.append(loss.item())

final_state.write(sys.argv[1], losses, called, optimizer)
common.end()
