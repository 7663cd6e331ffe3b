"""NCCL, and RCCL on AMD: collectives are kernels on the device's streams, and a call returns before its result is there.

What is done about that:

- Whoever waits is let go by `abort()` of each communicator, on a thread of its own: one that gets stuck holds up no other. The
  controller replaces a rank that does not come loose in time.
- An aborted collective *returns*, with garbage and without an error. So nothing counts before the host has waited for the stream
  and has then seen that the generation is whole (`Communicators.synchronize`). Its mark that it is broken comes before the abort.
- torch's own watchdog would end a process whose peer is lost. `environment` keeps it from that.

Seen on torch 2.11.0 with NCCL 2.28.9 on a GPU (docs/gpu.md), and on torch 2.13.0 with the imitated GPU of tests/imitated_gpu.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from torchrelay.protocol.errors import DeviceLostError
from torchrelay.protocol.logs.log_lines import LogLines
from torchrelay.shim.adapters.process_groups.nccl_trace import waiting_collectives
from torchrelay.shim.adapters.process_groups.process_group import timeout_of_communicator
from torchrelay.shim.adapters.process_groups.sockets import tcp_sockets

_NEEDED = ("abort", "eager_connect_single_device", "options", "name")
_COPIED = ("is_high_priority_stream", "global_ranks_in_group", "group_name")
_OF_CONFIG = (
    "cga_cluster_size",
    "min_ctas",
    "max_ctas",
    "net_name",
    "split_share",
    "traffic_class",
    "cta_policy",
    "collnet_enable",
    "nvls_ctas",
)
_SLOW_ABORT_S = 1.0


class Nccl:
    name = "nccl"
    on_device = True
    failure_marks: tuple[str, ...] = ("NCCL", "ncclRemoteError", "ncclSystemError", "ncclInternalError")
    environment: Mapping[str, str] = {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # the watchdog ends no process
        "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
        "TORCH_NCCL_PROPAGATE_ERROR": "0",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1",  # after an error the watchdog sleeps for four times that, with a lock held
        "TORCH_NCCL_ENABLE_MONITORING": "0",  # nobody ends a process whose watchdog is held up
        "TORCH_NCCL_BLOCKING_WAIT": "0",
        "TORCH_NCCL_ENABLE_TIMING": "1",  # whether a collective has begun is known by its first event alone
    }

    note = (
        "NCCL: torch's own watchdog and monitor end no process while torchrelay is there "
        f"({', '.join(f'{name}={value}' for name, value in environment.items())}); torchrelay finds the rank that is lost or "
        "hangs, and --hang-timeout ends a job that it cannot save"
    )

    def __init__(self) -> None:
        self._freed: dict[int, Any] = {}
        """By their addresses, which stay theirs as long as they are kept here."""
        self._aborting: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._sockets: set[str] = set()

    @property
    def sockets(self) -> frozenset[str]:
        return frozenset(self._sockets)

    def prepare(self) -> None:
        """A communicator that the script connects opens sockets, too, beside those of its store."""
        original = dist.ProcessGroupNCCL.eager_connect_single_device

        @functools.wraps(original)
        def eager_connect_single_device(communicator: Any, *args: Any, **kwargs: Any) -> Any:
            before = set(tcp_sockets().values())
            try:
                return original(communicator, *args, **kwargs)
            finally:
                self._sockets |= set(tcp_sockets().values()) - before

        # Not an assignment: mypy forbids it.
        setattr(dist.ProcessGroupNCCL, "eager_connect_single_device", eager_connect_single_device)  # noqa: B010

    def missing(self) -> str:
        if not dist.is_nccl_available():
            return f"torch {torch.__version__} lacks ProcessGroupNCCL"
        lacking = [name for name in _NEEDED if not hasattr(dist.ProcessGroupNCCL, name)]
        return f"ProcessGroupNCCL of torch {torch.__version__} lacks {', '.join(lacking)}" if lacking else ""

    def new(self, store: Any, place: int, size: int, like: Any) -> Any:
        """`like` may be of a joiner's set-up, which has no options of this library."""
        options = dist.ProcessGroupNCCL.Options()
        before = getattr(like, "options", None)
        if isinstance(before, dist.ProcessGroupNCCL.Options):
            _copy_options(before, options)
        options._timeout = timeout_of_communicator(like)
        options.config.blocking = 0  # else nobody can end a wait for a peer that does not come
        return dist.ProcessGroupNCCL(store, place, size, options)

    def connect(self, communicator: Any, device: torch.device) -> None:
        """Each member is heard of: without that a peer would be met in the middle of a step."""
        communicator.eager_connect_single_device(device)
        heard = torch.ones(1, device=device)
        communicator.allreduce([heard]).wait()
        if heard.item() != communicator.size():
            raise RuntimeError(f"torchrelay: NCCL connected {heard.item():.0f} of {communicator.size()} ranks")

    def unconnected(self, place: int, size: int) -> Any:
        return dist.ProcessGroupNCCL(dist.HashStore(), place, size, dist.ProcessGroupNCCL.Options())

    def free(self, communicators: Iterable[Any], log: LogLines) -> None:
        with self._lock:
            for communicator in communicators:
                if id(communicator) in self._freed or not isinstance(communicator, dist.ProcessGroupNCCL):
                    continue
                self._freed[id(communicator)] = communicator
                thread = threading.Thread(target=_abort, args=(communicator, log), name="torchrelay-abort", daemon=True)
                self._aborting.append(thread)
                thread.start()

    def await_freed(self, deadline_s: float) -> None:
        end_s = time.monotonic() + deadline_s
        with self._lock:
            aborting, self._aborting = self._aborting, []
        for thread in aborting:
            thread.join(max(end_s - time.monotonic(), 0.0))
        stuck = [thread for thread in aborting if thread.is_alive()]
        with self._lock:
            self._aborting += stuck  # nothing is freed before these are
            if not self._aborting:
                self._freed.clear()
        if stuck:
            raise RuntimeError(f"torchrelay: a communicator of NCCL was not aborted within {deadline_s:.0f} s")

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

    def synchronize(self) -> None:
        torch.cuda.current_stream().synchronize()


def _abort(communicator: Any, log: LogLines) -> None:
    started_s = time.monotonic()
    communicator.abort()
    took_s = time.monotonic() - started_s
    if took_s > _SLOW_ABORT_S:
        log.say(f"aborting a communicator of NCCL took {took_s:.1f} s")


def _copy_options(before: Any, options: Any) -> None:
    """What the script has set, and no more: torch crashes where a name is set to None (2.13)."""
    for target, source, fresh, names in (
        (options, before, options, _COPIED),
        (options.config, before.config, dist.ProcessGroupNCCL.Options().config, _OF_CONFIG),
    ):
        for name in names:
            value = getattr(source, name, None)
            if value is not None and value != getattr(fresh, name, None):
                setattr(target, name, value)
