"""Serve NCCL, and RCCL on AMD, which torch calls by the same names.

Collectives are kernels on the device's streams, and a call returns before its result is there. What is done about that:

- A thread that waits is let go by `abort()` of each communicator, on a thread of its own: one that gets stuck holds up no other. A
  rank that does not come loose says so and is replaced (`nccl_aborts.py`).
- An aborted collective *returns*, with garbage and without an error. So no result counts before the host has waited for the stream
  and has then seen that the generation is whole (`Communicators.synchronize`). The mark that the generation is broken comes before
  the abort.
- torch's own watchdog would end a process whose peer is lost. `environment` keeps it from that.

Seen on torch 2.11.0 with NCCL 2.28.9 on a GPU (docs/gpu.md), and on torch 2.13.0 with the imitated GPU of tests/imitated_gpu.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from torchrelay.protocol.errors import DeviceLostError
from torchrelay.protocol.logs.log_lines import LogLines
from torchrelay.shim.adapters.process_groups.nccl_trace import waiting_collectives
from torchrelay.shim.adapters.process_groups.process_group import timeout_of_communicator
from torchrelay.shim.adapters.process_groups.sockets import tcp_sockets
from torchrelay.shim.backends import nccl_interface
from torchrelay.shim.backends.nccl_aborts import Aborts
from torchrelay.shim.backends.nccl_connecting import Connecting


class Nccl:
    name = "nccl"
    on_device = True
    failure_marks: tuple[str, ...] = ("NCCL", "RCCL", "ncclRemoteError", "ncclSystemError", "ncclInternalError")
    environment: Mapping[str, str] = {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # the watchdog ends no process
        "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
        "TORCH_NCCL_PROPAGATE_ERROR": "0",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1",  # after an error the watchdog sleeps for four times that, with a lock held
        "TORCH_NCCL_ENABLE_MONITORING": "0",  # nothing ends a process whose watchdog is held up
        "TORCH_NCCL_BLOCKING_WAIT": "0",
        "TORCH_NCCL_ENABLE_TIMING": "1",  # whether a collective has begun is known by its first event alone
    }

    def __init__(self) -> None:
        self._aborts = Aborts()
        self._connecting = Connecting()
        self._sockets: set[str] = set()

    @property
    def sockets(self) -> frozenset[str]:
        return frozenset(self._sockets)

    @property
    def note(self) -> str:
        """Return also what is lost because torch lacks something."""
        told = (
            f"{nccl_interface.library()}: torch's own watchdog and monitor end no process while torchrelay is there "
            f"({', '.join(f'{name}={value}' for name, value in self.environment.items())}); torchrelay finds the rank that is "
            "lost or hangs, and --hang-timeout ends a job that it cannot save"
        )
        lacking = nccl_interface.lacking_here() if dist.is_nccl_available() else ()
        lost = [f"torch {torch.__version__} lacks {name}: {used.without}" for used, name in lacking if used.without]
        return "; ".join((told, *lost))

    def prepare(self) -> None:
        """Note the sockets that a communicator opens when the script connects it, beside those of its store."""
        original = dist.ProcessGroupNCCL.eager_connect_single_device

        @functools.wraps(original)
        def eager_connect_single_device(communicator: Any, *args: Any, **kwargs: Any) -> Any:
            before = set(tcp_sockets().values())
            try:
                return original(communicator, *args, **kwargs)
            finally:
                self._sockets |= set(tcp_sockets().values()) - before

        # mypy forbids a plain assignment.
        setattr(dist.ProcessGroupNCCL, "eager_connect_single_device", eager_connect_single_device)  # noqa: B010

    def missing(self) -> str:
        if not dist.is_nccl_available():
            return f"torch {torch.__version__} lacks ProcessGroupNCCL"
        lacking = [name for used, name in nccl_interface.lacking_here() if not used.without]
        return f"torch {torch.__version__} lacks {', '.join(lacking)}" if lacking else ""

    def new(self, store: Any, place: int, size: int, like: Any) -> Any:
        """Make a communicator. `like` may come from a joiner's set-up, and then has no options of this library."""
        options = dist.ProcessGroupNCCL.Options()
        before = getattr(like, "options", None)
        if isinstance(before, dist.ProcessGroupNCCL.Options):
            _copy_options(before, options)
        options._timeout = timeout_of_communicator(like)
        options.config.blocking = 0  # else a wait for a peer is NCCL's own, and no abort would end it
        return dist.ProcessGroupNCCL(store, place, size, options)

    def connect(self, communicator: Any, device: torch.device) -> None:
        self._connecting.connect(communicator, device)

    def unconnected(self, place: int, size: int) -> Any:
        return dist.ProcessGroupNCCL(dist.HashStore(), place, size, dist.ProcessGroupNCCL.Options())

    def free(
        self, communicators: Iterable[Any], log: LogLines, stuck: Callable[[str], None] = lambda reason: None
    ) -> None:
        """Abort the communicators. One that is being connected is only given up: it has nothing on the device yet."""
        made = [c for c in communicators if isinstance(c, dist.ProcessGroupNCCL) and not self._connecting.give_up(c)]
        self._aborts.begin(made, log, stuck)

    def await_freed(self, deadline_s: float) -> None:
        self._aborts.await_over(deadline_s)

    def check_device(self, device: torch.device) -> None:
        try:
            torch.cuda.synchronize(device)
            total = torch.ones(2, device=device).sum().item()
        except RuntimeError as error:
            raise DeviceLostError(f"{device} cannot be used any more: {error}") from error
        if total != 2.0:
            raise DeviceLostError(f"{device} cannot be used any more: it says that 1 + 1 is {total}")

    def waits(self) -> bool:
        return bool(waiting_collectives())

    def failure(self, communicator: Any) -> str:
        """Return why the communicator has failed, as torch's watchdog has found it; a timeout is the hang watch's.

        Empty where torch does not tell (2.6).
        """
        found = getattr(communicator, "get_error", lambda: None)()
        return (
            f"a communicator of {nccl_interface.library()} has failed"
            if getattr(found, "name", "") == "COMM_ERROR"
            else ""
        )

    def synchronize(self) -> None:
        self._aborts.stream = torch.cuda.current_stream()
        self._aborts.stream.synchronize()


def _copy_options(before: Any, options: Any) -> None:
    """Copy the options that the script has set, and no others: torch crashes where a name is set to None (2.13)."""
    for target, source, fresh, names in (
        (options, before, options, nccl_interface.COPIED_OPTIONS),
        (options.config, before.config, dist.ProcessGroupNCCL.Options().config, nccl_interface.COPIED_CONFIG),
    ):
        for name in names:
            value = getattr(source, name, None)
            if value is not None and value != getattr(fresh, name, None):
                setattr(target, name, value)
