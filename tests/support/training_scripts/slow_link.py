"""One transfer takes longer than a hang may last: bytes arrive all the time, all ranks wait. Usage: slow_link.py OUT"""

import socket
import struct
import sys

import common
import final_state
import own_sockets
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, TensorDataset

SLOW_S, SLOW_STEP = 9.0, 2
FLOATS = 1_000_000
BYTES = 2 * FLOATS
"""That one of two ranks sends before it can have the sum: its half of the tensor."""
SO_MAX_PACING_RATE = 47


def limit_connections(bytes_per_s):
    """What this process sends over TCP leaves it at this rate."""
    for connection in own_sockets.duplicates():
        with connection:
            connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, struct.pack("=I", bytes_per_s))


def main():
    common.start()
    model = common.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for step, (x, y) in enumerate(DataLoader(TensorDataset(*common.data(20)), batch_size=4)):
        loss = common.loss_of(model, x, y)
        optimizer.zero_grad()
        loss.backward()
        if step == SLOW_STEP:
            if dist.get_rank() == 1:
                limit_connections(int(BYTES / SLOW_S))
            dist.all_reduce(torch.ones(FLOATS))
            limit_connections(2**32 - 1)
        optimizer.step()
        losses.append(loss.item())
    final_state.write(sys.argv[1], losses, model, optimizer)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
