"""Random generators of every kind, held in objects of the script. Usage: generators.py OUT"""

import random
import sys

import common
import final_state
import numpy
import pace
import torch


class Augmentation:
    __slots__ = ("choices", "noise", "order", "used")

    def __init__(self, seed):
        self.choices = random.Random(seed)
        self.noise = numpy.random.default_rng(seed)
        self.order = numpy.random.RandomState(seed)
        self.used = 0

    def __call__(self, x):
        self.used += 1
        scale = self.choices.uniform(0.9, 1.1)
        noise = torch.from_numpy(self.noise.standard_normal(tuple(x.shape)).astype("float32"))
        rows = torch.from_numpy(self.order.permutation(len(x)))
        return scale * x[rows] + 0.1 * noise


class Curriculum:
    def __init__(self, seed, count):
        self.generator = torch.Generator().manual_seed(seed)
        self.weights = numpy.ones(count)

    def batches(self, steps):
        for step in range(steps):
            chosen = torch.multinomial(torch.from_numpy(self.weights), 4, generator=self.generator)
            self.weights[chosen.numpy()] *= 0.9
            yield step, chosen


def main():
    rank, _ = common.start()
    model = common.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    x, y = common.data(32)
    augment, curriculum = Augmentation(rank), Curriculum(rank, len(x))
    losses = []
    for _step, chosen in curriculum.batches(30):
        pace.work()
        loss = common.loss_of(model, augment(x[chosen]), y[chosen] + 0.1 * random.random() + 0.1 * numpy.random.rand())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    final_state.write(
        sys.argv[1],
        losses,
        model,
        optimizer,
        curriculum=[curriculum.weights, curriculum.generator.get_state()],
        augment=[augment.used, augment.choices.random(), augment.noise.random(), augment.order.rand()],
    )
    common.end()


if __name__ == "__main__":
    main()
