"""Two networks and two optimizers, stepped in turn in each iteration."""

import ending
import pace
import setting
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

LATENT = 6


def generator_network():
    return nn.Sequential(nn.Linear(LATENT, 24), nn.LeakyReLU(0.2), nn.Linear(24, 8))


def discriminator_network():
    return nn.Sequential(nn.Linear(8, 24), nn.LeakyReLU(0.2), nn.Dropout(0.2), nn.Linear(24, 1))


def main():
    _, world_size = setting.start()
    generator = DistributedDataParallel(generator_network().to(setting.DEVICE))
    discriminator = DistributedDataParallel(discriminator_network().to(setting.DEVICE))
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    discriminator_optimizer = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
    criterion = nn.BCEWithLogitsLoss()
    data = setting.dataset(7 * 4 * world_size)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=4, sampler=sampler)
    losses = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for real, _ in loader:
            pace.work()
            real = real.to(setting.DEVICE)
            ones, zeros = real.new_ones(len(real), 1), real.new_zeros(len(real), 1)
            fake = generator(torch.randn(len(real), LATENT, device=setting.DEVICE))

            discriminator_optimizer.zero_grad()
            both = discriminator(torch.cat([real, fake.detach()]))
            loss_d = criterion(both, torch.cat([ones, zeros]))
            loss_d.backward()
            discriminator_optimizer.step()

            generator_optimizer.zero_grad()
            loss_g = criterion(discriminator(fake), ones)
            loss_g.backward()
            generator_optimizer.step()
            losses += [loss_d.item(), loss_g.item()]
    ending.write(
        losses,
        generator=generator,
        discriminator=discriminator,
        generator_optimizer=generator_optimizer,
        discriminator_optimizer=discriminator_optimizer,
    )
    setting.end()


if __name__ == "__main__":
    main()
