"""DistributedDataParallel's reducer across a migration.

The layout of the gradient buckets is part of the trajectory: an all-reduce over other bucket boundaries rounds differently,
and ranks with different layouts mix gradients up without any error. After the first backward DDP rebuilds its buckets in the
order in which gradients became ready; a rank that was there keeps that layout (`_reset_state` keeps the buckets), one that
was not, or whose rebuild was still due, gets a new reducer with the layout written out.

With `static_graph=True` the first backward of a reducer has one collective more than the later ones, so that all ranks get
new reducers, survivors too; and the layout is the final one in the third step only.

Leans on `reducer._reset_state`, `_ddp_init_helper`, `_build_params_for_reducer`, `_build_debug_param_to_name_mapping`,
`_get_ddp_logging_data` (keys `rebuilt_per_bucket_param_indices`, `prev_iteration_grad_ready_order_indices`),
`torch.distributed._compute_bucket_assignment_by_size`, `_static_graph_delay_allreduce_enqueued`. Seen on torch 2.13.0.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters import comm_hooks

Layout = list[list[int]]
"""Parameter indices of each bucket, in the order in which buckets are reduced."""
LendName = Callable[[Any], AbstractContextManager[None]]


def check_supported() -> None:
    """Raises UnsupportedError where this torch lacks what is needed."""
    needed = (
        "_ddp_init_helper",
        "_build_params_for_reducer",
        "_build_debug_param_to_name_mapping",
        "_get_ddp_logging_data",
    )
    missing = [name for name in needed if not hasattr(DistributedDataParallel, name)] + comm_hooks.missing()
    if not hasattr(dist.Reducer, "_reset_state"):
        missing.append("Reducer._reset_state")
    if missing:
        raise UnsupportedError(f"DistributedDataParallel of torch {torch.__version__} lacks {', '.join(missing)}")


def _indices(text: str) -> list[int]:
    return [int(i) for i in text.replace(",", " ").split()]


class ReadyOrder:
    """The order in which gradients became ready in the first synchronised backward: what the rebuild goes by.

    DDP says it only later, in its logging data, which is too late for a failure in the second step.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        parameters, _ = ddp._build_params_for_reducer()
        self.indices: list[int] = []
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(functools.partial(self._ready, ddp, index))
            for index, parameter in enumerate(parameters)
        ]

    def _ready(self, ddp: DistributedDataParallel, index: int, _parameter: torch.Tensor) -> None:
        if ddp.require_backward_grad_sync and index not in self.indices:
            self.indices.append(index)

    def forget(self) -> None:
        """An interrupted backward is done again."""
        self.indices.clear()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def layout(ddp: DistributedDataParallel, ready: list[int]) -> Layout:
    """The layout that the next backward would use in an undisturbed run; empty for the one that a new reducer starts with."""
    rebuilt = str(ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", ""))
    if rebuilt:
        return [_indices(bucket) for bucket in rebuilt.split(",")]
    if not ready or ddp.find_unused_parameters or ddp.static_graph:
        return []
    parameters, sparse = ddp._build_params_for_reducer()
    config = getattr(ddp, "_bucket_config", None)
    limits: list[int] = []
    first_bytes = dist._DEFAULT_FIRST_BUCKET_BYTES
    if config is not None:
        _, limits = config.compute_bucket_size_limits(
            static_graph=ddp.static_graph, find_unused_parameters=ddp.find_unused_parameters
        )
        first_bytes = config.first_bucket_bytes_cap
    limits = list(limits) or [first_bytes, ddp.bucket_bytes_cap]
    buckets, _ = dist._compute_bucket_assignment_by_size([parameters[i] for i in ready], limits, sparse, ready)
    return [list(b) for b in buckets]


Known = list[tuple[Layout, bool]]
"""Of each wrapper the layout, and whether its buckets are rebuilt."""


class Layouts:
    """The layout of each wrapper at the latest boundaries: in the middle of a step a reducer must not be asked.

    A rebuild that a failure interrupts leaves the reducer half done; reading it then ends the process.
    """

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}
        self._settled: Known | None = None
        """The latest, if nothing changes in it any more."""
        self._ready: dict[int, ReadyOrder] = {}

    def built(self, ddp: DistributedDataParallel) -> None:
        self._ready[id(ddp)] = ReadyOrder(ddp)

    def note(self, boundary: int, wrapped: Sequence[DistributedDataParallel]) -> None:
        """At a boundary, or in the gate before it: the backward is complete there, and peers may be past the gate."""
        before = self._latest()
        now = before if before is self._settled and len(before) == len(wrapped) else self._look(before, wrapped)
        kept = self._known.get(boundary - 1)
        self._known = {boundary: now} if kept is None else {boundary - 1: kept, boundary: now}

    def _look(self, before: Known, wrapped: Sequence[DistributedDataParallel]) -> Known:
        now = []
        for number, ddp in enumerate(wrapped):
            rebuilt = _has_rebuilt(ddp)
            carried = before[number][0] if number < len(before) else []
            now.append((layout(ddp, self._ready[id(ddp)].indices) or carried, rebuilt))
            if rebuilt:
                self._ready[id(ddp)].close()
        if all(rebuilt for _, rebuilt in now):
            self._settled = now
        return now

    def adopt(self, target: int, wrapped: Sequence[DistributedDataParallel], wanted: list[Layout]) -> None:
        """A joiner's new reducers have a layout that they cannot tell of."""
        padded = [*wanted, *([] for _ in wrapped)]
        self._known = {target: [(padded[number], False) for number in range(len(wrapped))]}

    def migrated(self, target: int) -> None:
        """Every reducer rebuilds its buckets once more, into the same layout."""
        self._known = {target: [(wanted, False) for wanted, _ in self._known.get(target, self._latest())]}
        if target == 0:
            for ready in self._ready.values():
                ready.forget()

    def as_text(self, target: int) -> str:
        """What a joiner that enters at boundary `target` needs."""
        return json.dumps([wanted for wanted, _ in self._known.get(target, self._latest())])

    def prepare_survivor(self, wrapped: Sequence[DistributedDataParallel], target: int, lend_name: LendName) -> None:
        """After an interrupted or a finished backward: ready for the next one, in the layout of boundary `target`."""
        known = self._known.get(target, self._latest())
        for number, ddp in enumerate(wrapped):
            wanted, rebuilt = known[number] if number < len(known) else ([], False)
            if ddp.static_graph or (wanted and target > 0 and not rebuilt):
                new_reducer(ddp, wanted if target > 0 else [], lend_name, settled=target == 0)
            else:
                ddp.reducer._reset_state()

    def abandoned(self, wrapped: Sequence[DistributedDataParallel], lend_name: LendName) -> None:
        """A migration that came to nothing, in all ranks that stood still for it."""
        known = self._latest()
        for number, ddp in enumerate(wrapped):
            if ddp.static_graph and number < len(known) and known[number][0]:
                new_reducer(ddp, known[number][0], lend_name)
            else:
                ddp.reducer._reset_state()

    def _latest(self) -> list[tuple[Layout, bool]]:
        return self._known[max(self._known)] if self._known else []


def prepare_joiner(
    wrapped: Sequence[DistributedDataParallel], text: str, target: int, lend_name: LendName
) -> list[Layout]:
    """Reducers on the new generation's communicators, in a survivor's layout, which is returned."""
    layouts: list[Layout] = json.loads(text) if text and target > 0 else []
    for number, ddp in enumerate(wrapped):
        new_reducer(ddp, layouts[number] if number < len(layouts) else [], lend_name, settled=target == 0)
    return layouts


def _has_rebuilt(ddp: DistributedDataParallel) -> bool:
    return bool(ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", ""))


def why_not_carried(ddp: DistributedDataParallel) -> str:
    """Why no new communicator could be put below the wrapper; empty if one could. Touches no reducer."""
    return comm_hooks.why_not_carried(ddp)


def without_peers(ddp: Any) -> None:
    """The next forward and backward communicate nothing."""
    ddp.require_backward_grad_sync = False
    if ddp.static_graph:
        ddp._static_graph_delay_allreduce_enqueued = True


def new_reducer(ddp: DistributedDataParallel, wanted: Layout, lend_name: LendName, *, settled: bool = False) -> None:
    """A fresh reducer on the group's present communicator; `wanted` empty means the layout that DDP starts with.

    `lend_name(group)`: DDP's logger asks for the default backend's name, which torch knows for its built-in types alone.
    `settled`: no step was done yet, so that this is the layout to start with. Raises UnsupportedError.
    """
    if reason := why_not_carried(ddp):
        raise UnsupportedError(reason)
    if ddp.static_graph and not wanted and not settled:
        raise UnsupportedError(
            "DistributedDataParallel with static_graph=True cannot be carried over in its first two steps"
        )
    parameters, sparse = ddp._build_params_for_reducer()
    names = ddp._build_debug_param_to_name_mapping(parameters)
    with _assignment(wanted, ddp.bucket_bytes_cap), lend_name(ddp.process_group):
        ddp.__dict__.pop("reducer", None)  # the old one takes its hooks along before the new one sets its own
        ddp._ddp_init_helper(parameters, sparse, names, ddp.static_graph)
        if ddp.static_graph:
            ddp._static_graph_delay_allreduce_enqueued = False
            ddp.reducer._set_static_graph()
    comm_hooks.register_again(ddp)


@contextmanager
def _assignment(wanted: Layout, limit_bytes: int) -> Iterator[None]:
    if not wanted:
        yield
        return
    original = dist._compute_bucket_assignment_by_size
    dist._compute_bucket_assignment_by_size = lambda *a, **k: (list(reversed(wanted)), [limit_bytes] * len(wanted))
    try:
        yield
    finally:
        dist._compute_bucket_assignment_by_size = original


def install(
    on_built: Callable[[DistributedDataParallel], None], before_forward: Callable[[Any, Callable[..., Any]], Any]
) -> None:
    """Tells of each wrapper that is built, and lets `before_forward` run `_pre_forward`, where a forward communicates."""
    original_init: Callable[..., None] = DistributedDataParallel.__init__
    original_pre: Callable[..., Any] = DistributedDataParallel._pre_forward

    @functools.wraps(original_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        on_built(self)

    @functools.wraps(original_pre)
    def _pre_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return before_forward(self, lambda: original_pre(self, *args, **kwargs))

    setattr(DistributedDataParallel, "__init__", __init__)  # noqa: B010 - mypy forbids the assignment
    setattr(DistributedDataParallel, "_pre_forward", _pre_forward)  # noqa: B010 - the same
