"""What can be seen in one process, by name: ACTION is a function here."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from imitated_gpu import counts, held
from imitated_gpu.faults import FOLDER_VARIABLE, Fault, Orders
from imitated_gpu.ranks import report

STREAMS = 32  # in torch's pool


def orders() -> Orders:
    return Orders(Path(os.environ[FOLDER_VARIABLE]))


def run_ahead() -> None:
    """Queues more work than the device can have done, and counts what the host waited for."""
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.LayerNorm(32), torch.nn.Linear(32, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    inputs = torch.randn(8, 32, device="cuda")

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step()
    torch.cuda.synchronize()
    before = counts()
    with held():
        losses = [step() for _ in range(3)]
        event = torch.cuda.Event()
        event.record()
        after, is_ahead = counts(), not event.query()
    report(
        is_ahead=is_ahead,
        host_waits=after.host_waits - before.host_waits,
        waited_for=after.waited_for_operators - before.waited_for_operators,
        queued=after.queued_operators - before.queued_operators,
        losses=[loss.item() for loss in losses],
    )


def pinned_memory() -> None:
    """Pinned memory is let go of while a copy from it is queued, and pinned memory of that size is asked for."""
    kept = []
    for number in range(4):
        source = torch.full((4,), number).pin_memory()
        torch.cuda._sleep(20_000_000)
        kept.append(source.cuda(non_blocking=True))
        del source
    torch.cuda.synchronize()
    report(copied=[tensor.tolist() for tensor in kept])


def sleep() -> None:
    """torch.cuda._sleep keeps the stream busy, not the host."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    torch.cuda._sleep(200_000_000)
    end.record()
    end.synchronize()
    report(took_ms=start.elapsed_time(end))


def assertion_on_device() -> None:
    """An index out of range in a queued operator."""
    table = torch.zeros(4, 4, device="cuda")
    try:
        torch.nn.functional.embedding(torch.tensor([9], device="cuda"), table)
        torch.cuda.synchronize()
    except RuntimeError as error:
        report(error=str(error).splitlines()[0])


def missing_kernel() -> None:
    """A CUDA operator without a CPU one."""
    cell = torch.nn.LSTMCell(4, 4).cuda()
    try:
        cell(torch.zeros(2, 4, device="cuda"))
    except RuntimeError as error:
        report(error=str(error).splitlines()[0], skipped=counts().skipped_kernels)


def device_error() -> None:
    """A sticky error, ordered while the device is in use."""
    tensor = torch.ones(4, device="cuda")
    torch.cuda.synchronize()
    orders().order(Fault.DEVICE_ERROR, pid=os.getpid())
    errors = []
    for _ in range(3):
        try:
            tensor += 1
            torch.cuda.synchronize()
        except RuntimeError as error:
            errors.append(str(error).splitlines()[0])
    report(errors=errors)


def random_numbers() -> None:
    """Saved states of the device's generator repeat what was drawn, in order and whatever the host draws meanwhile."""
    torch.cuda.manual_seed(5)
    state = torch.cuda.get_rng_state()

    def draw() -> list[torch.Tensor]:
        x = torch.ones(1000, device="cuda")
        drawn = [torch.randn(9, device="cuda"), torch.nn.functional.dropout(x, 0.5), torch.randperm(9, device="cuda")]
        torch.rand(3)
        return [t.cpu() for t in drawn]

    first, second = draw(), draw()
    torch.cuda.set_rng_state(state)
    again = draw()
    report(
        repeats=all(map(torch.equal, first, again)),
        differs=not any(map(torch.equal, first, second)),
        dropped=int((first[1] == 0).sum()),
    )


def many_communicators() -> None:
    """Makes and aborts communicators: nothing is left of them."""
    store = dist.HashStore()

    def made(number: int) -> None:
        options = dist.ProcessGroupNCCL.Options()
        backend = dist.ProcessGroupNCCL(dist.PrefixStore(str(number), store), 0, 1, options)
        tensor = torch.ones(8, device="cuda")
        backend.allreduce([tensor]).wait()
        torch.cuda.synchronize()
        (backend.abort if number % 2 else backend.shutdown)()

    for number in range(STREAMS):  # each takes the next one of torch's streams, whose thread starts with its first use
        made(number)
    before, threads_before = counts(), threads()
    for number in range(STREAMS, STREAMS + 20):
        made(number)
    after = counts()
    report(
        communicators=after.communicators,
        more_bytes=after.device_bytes - before.device_bytes,
        more_streams=after.streams - before.streams,
        more_events=after.events - before.events,
        more_threads=threads() - threads_before,
    )


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def async_error() -> None:
    """A communicator that fails while a collective is unfinished."""
    backend = dist.ProcessGroupNCCL(dist.HashStore(), 0, 1, dist.ProcessGroupNCCL.Options())
    tensor = torch.ones(1, device="cuda")
    backend.allreduce([tensor]).wait()
    torch.cuda.synchronize()
    with held():
        orders().order(Fault.ASYNC_ERROR, pid=os.getpid())
        backend.allreduce([tensor])
        while not orders().fired():  # torch's watchdog asks for errors of what is unfinished
            time.sleep(0.05)
        report(is_ahead=not torch.cuda.current_stream().query())
        os._exit(0)  # torch's destructor of a failed communicator waits for a minute


def slow_init() -> None:
    """Times a communicator of one."""
    backend = dist.ProcessGroupNCCL(dist.HashStore(), 0, 1, dist.ProcessGroupNCCL.Options())
    started = time.monotonic()
    backend.eager_connect_single_device(torch.device("cuda", 0))
    report(took_s=time.monotonic() - started)


def stuck_abort() -> None:
    """An abort that does not come back within 2 s."""
    backend = dist.ProcessGroupNCCL(dist.HashStore(), 0, 1, dist.ProcessGroupNCCL.Options())
    backend.allreduce([torch.ones(1, device="cuda")]).wait()
    torch.cuda.synchronize()
    orders().order(Fault.STUCK_ABORT, pid=os.getpid())
    thread = threading.Thread(target=backend.abort, daemon=True)
    thread.start()
    thread.join(2)
    report(is_stuck=thread.is_alive())


def main() -> None:
    torch.cuda.set_device(0)
    globals()[os.environ["ACTION"]]()
    os._exit(0)


main()
