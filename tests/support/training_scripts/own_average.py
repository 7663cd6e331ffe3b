"""An average of the weights that each rank has begun by itself, and a memory of its own data. Usage: own_average.py OUT HOW

HOW says how the average is written to: `behind` the update, past torch's counts (`data`), in the `update`, in the `forward` pass,
behind the update and from step 26 on in it (`later`), or by another tensor in its place: in a `dict` of tensors, in one that the
update writes to (`dict-update`), or in the model (`rebound`; `rebound-alike`: all ranks have the same average). `passed`: as
`behind`, with the memory under another name in the function that makes the update.
"""

import copy
import sys
import types

import common
import final_state
import pace
import torch

MEMORY = 30_000
STEPS, LATER = 45, 26

how = sys.argv[2]
in_dict = how.startswith("dict")
wide = 3000 if in_dict else 200
rank, world_size = common.start()
alike = how == "rebound-alike"
torch.manual_seed(3 if alike else 3 + rank)
net = torch.nn.Sequential(torch.nn.Linear(6, wide), torch.nn.LayerNorm(wide), torch.nn.Linear(wide, 1))
average = copy.deepcopy(net).requires_grad_(False)
averages = {name: p.clone() for name, p in average.named_parameters()} if in_dict else {}
memory = torch.zeros(MEMORY)
kept_in = {"bank": types.SimpleNamespace(memory=memory)} if how == "passed" else {}
if how == "passed":
    del memory
model = torch.nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-6 if in_dict else 0.001, momentum=0.9)
own = torch.Generator().manual_seed(100 + rank)
x, y = torch.randn(8, 6, generator=own), torch.randn(8, 1, generator=own)
losses, seen = [], []
step = 0


def write():
    if in_dict:
        for name, parameter in net.named_parameters():
            averages[name] = averages[name] * 0.9 + parameter.detach() * 0.1
        return
    for kept, now in zip(average, net):
        for name, parameter in [*kept.named_parameters()]:
            if how == "data":
                parameter.data.mul_(0.9).add_(getattr(now, name).data, alpha=0.1)
            elif how.startswith("rebound"):
                content = parameter.detach() * 0.9 + getattr(now, name).detach() * 0.1
                setattr(kept, name, torch.nn.Parameter(content, requires_grad=False))
            else:
                with torch.no_grad():
                    parameter.lerp_(getattr(now, name), 0.1)


def in_update(*_):
    if how in ("update", "dict-update") or (how == "later" and step >= LATER):
        write()


mark = torch.zeros(2)


def update(held, at):
    mark.at = at  # a walk that went on from the head would still know `held` by its name there
    optimizer.step()
    del mark.at
    held[at * 100 : at * 100 + 8] = (x[:, 0] + at).detach()


optimizer.register_step_post_hook(in_update)
for step in range(1, STEPS + 1):
    pace.work()
    optimizer.zero_grad()
    if how == "forward":
        write()
    loss = ((model(x + step / 10) - y) ** 2).mean()
    loss.backward()
    if how == "passed":
        update(kept_in["bank"].memory, step)
    else:
        optimizer.step()
    if how in ("behind", "passed", "data", "rebound", "rebound-alike", "dict") or (how == "later" and step < LATER):
        write()
    if how != "passed":
        memory[step * 100 : step * 100 + 8] = (x[:, 0] + step).detach()
    if step % 3 == 0:
        with torch.no_grad():
            made = torch.func.functional_call(average, averages, (x,)) if in_dict else average(x)
            seen.append(made.sum().item() + (kept_in["bank"].memory if how == "passed" else memory).sum().item())
    losses.append(loss.item())

kept = [*averages.values(), *(p.detach() for p in average.parameters())]
final_state.write(
    sys.argv[1],
    losses,
    model,
    optimizer,
    average=kept,
    memory=kept_in["bank"].memory if how == "passed" else memory,
    seen=seen,
)
common.end()
