"""Sparse tensors as gradients, attributes, batches, and a variable that training changes. Usage: sparse_tensors.py OUT"""

import sys

import common
import final_state
import pace
import torch
from torch.nn.parallel import DistributedDataParallel

PLACES = torch.tensor([[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0]])


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(12, 8, sparse=True)
        self.last = torch.nn.Linear(8, 1)
        self.graph = torch.sparse_coo_tensor(PLACES, torch.ones(6), (6, 6)).coalesce()

    def forward(self, ids):
        return self.last(torch.sparse.mm(self.graph, self.embedding(ids)))


class Graphs(torch.utils.data.Dataset):
    """Ids of nodes, and weights of edges, which `collate` makes sparse."""

    def __len__(self):
        return 64

    def __getitem__(self, number):
        return torch.randint(0, 12, (6,)), torch.rand(6)


def collate(rows):
    [(ids, weights)] = rows
    return ids, torch.sparse_coo_tensor(PLACES, weights, (6, 6)).coalesce()


def main():
    (out,) = sys.argv[1:]
    common.start()
    net = Net()
    model = DistributedDataParallel(net)
    sparse = torch.optim.SparseAdam(list(net.embedding.parameters()), lr=1e-2)
    dense = torch.optim.AdamW(net.last.parameters(), lr=1e-2)
    decayed = torch.sparse_coo_tensor(PLACES, torch.ones(6), (6, 6)).coalesce()
    losses = []
    for ids, graph in torch.utils.data.DataLoader(Graphs(), batch_size=1, shuffle=True, collate_fn=collate):
        pace.work()
        sparse.zero_grad()
        dense.zero_grad()
        found = torch.sparse.mm(decayed, torch.sparse.mm(graph, model(ids)))
        loss = ((found - 1) ** 2).mean()
        loss.backward()
        sparse.step()
        dense.step()
        decayed = (decayed * 1.01).coalesce()
        losses.append(loss.item())
        if len(losses) == 16:
            break
    final_state.write(out, losses, model, dense)
    common.end()


main()
