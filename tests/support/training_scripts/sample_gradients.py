"""Gradients of samples in attributes of parameters, larger than a journal takes. Usage: sample_gradients.py OUT HOW

HOW: `dropped` (behind the update, as for differential privacy), `read` (their norm is logged there in step 12).
"""

import sys

import common
import final_state
import pace
import torch

WIDE, BATCH, STEPS = 160, 16, 20

out, how = sys.argv[1:]
rank, world_size = common.start()
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(6, WIDE), torch.nn.Tanh(), torch.nn.Linear(WIDE, WIDE, bias=False))
layer = model[2]
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
own = torch.Generator().manual_seed(100 + rank)
x, y = torch.randn(STEPS, BATCH, 6, generator=own), torch.randn(STEPS, BATCH, WIDE, generator=own)
losses, norms = [], []


def keep(module, given, result):
    result.register_hook(lambda gradient: keep_of(module, given[0].detach(), gradient))


def keep_of(module, given, gradient):
    module.weight.grad_sample = torch.einsum("bo,bi->boi", gradient, given)


def clip(parameter):
    norm = parameter.grad_sample.flatten(1).norm(dim=1)
    return torch.einsum("b,boi->oi", (1.0 / (norm + 1e-6)).clamp(max=1.0), parameter.grad_sample)


layer.register_forward_hook(keep)
for step in range(STEPS):
    pace.hold(step + 1)
    pace.work()
    loss = ((model(x[step]) - y[step]) ** 2).mean()
    loss.backward()
    layer.weight.summed = clip(layer.weight)
    layer.weight.grad = layer.weight.summed.view_as(layer.weight) if rank == 1 else layer.weight.summed + 0
    for parameter in model.parameters():
        torch.distributed.all_reduce(parameter.grad)
        parameter.grad /= world_size
    optimizer.step()
    losses.append(loss.item())
    if how == "read" and step == 11:
        norms.append(layer.weight.grad_sample.norm().item())
    optimizer.zero_grad(set_to_none=False)  # one rank alone writes to what was summed up
    layer.weight.grad_sample = layer.weight.summed = None

final_state.write(out, losses, model, optimizer, norms=norms)
common.end()
