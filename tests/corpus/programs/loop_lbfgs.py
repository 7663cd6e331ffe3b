"""LBFGS: the optimizer calls a closure several times a step."""

import ending
import pace
import setting
import torch
from torch.nn.parallel import DistributedDataParallel


def main():
    rank, _ = setting.start()
    model = DistributedDataParallel(setting.network(width=12, depth=1, dropout=0.0))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.2, max_iter=3, history_size=4)
    x, y = setting.data(32)
    order = torch.Generator().manual_seed(rank)
    losses, calls = [], 0
    for _ in range(14):
        pace.work()
        chosen = torch.randperm(len(x), generator=order)[:16]

        def closure():
            nonlocal calls
            calls += 1
            optimizer.zero_grad()
            loss = setting.loss_of(model, x[chosen], y[chosen])  # noqa: B023 - it is called in its iteration
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    ending.write(losses, model=model, optimizer=optimizer, calls=calls, order=order)
    setting.end()


if __name__ == "__main__":
    main()
