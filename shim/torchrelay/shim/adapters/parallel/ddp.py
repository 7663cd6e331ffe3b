"""Give DistributedDataParallel a new reducer in a migration.

The layout of the gradient buckets is part of the trajectory: an all-reduce over other bucket boundaries rounds differently, and
ranks with different layouts mix gradients up without any error. After the first backward DDP rebuilds its buckets in the order in
which gradients became ready. In a migration every rank gets a new reducer with the layout written out. Wrappers with
`find_unused_parameters=True` are the exception: they never rebuild their buckets (`_reset_state` keeps them).

Which layout that is, `ddp_layouts.py` says. With `static_graph=True` the first backward of a reducer has one collective more than
the later ones.

Leans on `reducer._reset_state`, `_ddp_init_helper`, `_build_params_for_reducer`, `_build_debug_param_to_name_mapping`,
`torch.distributed._compute_bucket_assignment_by_size`, `_static_graph_delay_allreduce_enqueued`. Seen on torch 2.13.0.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters.parallel import comm_hooks
from torchrelay.shim.adapters.process_groups.process_group import name_if_known

Layout = list[list[int]]
"""Parameter indices of each bucket, in the order in which buckets are reduced."""
_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})


class Wrappers:
    """The living wrappers whose process group lives. A wrapper's number is how many were built before it.

    A process that is led to a later iteration of a loop, in which wrappers are built, gets the number from a rank that was there.
    So a number names the same wrapper on all ranks, though each rank may let go of old ones at another time.
    """

    def __init__(self) -> None:
        self.built = 0
        self._living: weakref.WeakValueDictionary[int, DistributedDataParallel] = weakref.WeakValueDictionary()
        self._indices: weakref.WeakKeyDictionary[DistributedDataParallel, tuple[list[torch.Tensor] | None, bool]] = (
            weakref.WeakKeyDictionary()
        )
        """The list of buffers that was looked through. A wrapper replaces the list where a buffer was bound anew."""

    def add(self, ddp: DistributedDataParallel) -> None:
        self._living[self.built] = ddp
        _built_as[ddp] = self.built
        self.built += 1

    def numbered(self) -> list[tuple[int, DistributedDataParallel]]:
        return [(number, ddp) for number, ddp in sorted(self._living.items()) if name_if_known(ddp.process_group)]

    def takes_indices(self, ddp: DistributedDataParallel) -> bool:
        """Return whether this forward takes buffers from rank 0 that may be indices, such as positions.

        A communicator that was aborted leaves garbage behind, and an index that is garbage ends the process's use of its device.
        """
        if not ddp.will_sync_module_buffers():
            return False
        buffers, found = self._indices.get(ddp, (None, False))
        if buffers is not ddp.modules_buffers:
            found = any(buffer.dim() > 0 and buffer.dtype in _INTEGERS for buffer in ddp.modules_buffers)
            self._indices[ddp] = ddp.modules_buffers, found
        return found

    def __iter__(self) -> Iterator[DistributedDataParallel]:
        return (ddp for _, ddp in self.numbered())

    def __len__(self) -> int:
        return len(self.numbered())


_built_as: weakref.WeakKeyDictionary[DistributedDataParallel, int] = weakref.WeakKeyDictionary()
NOT_BUILT_HERE = 1 << 62


def place_among_built(ddp: DistributedDataParallel) -> int:
    """Return the wrapper's number; NOT_BUILT_HERE for one that was copied."""
    return _built_as.get(ddp, NOT_BUILT_HERE)


def check_supported() -> None:
    """Raise UnsupportedError where this torch lacks what is needed."""
    needed = (
        "_ddp_init_helper",
        "_build_params_for_reducer",
        "_build_debug_param_to_name_mapping",
        "_get_ddp_logging_data",
        "will_sync_module_buffers",
    )
    missing = [name for name in needed if not hasattr(DistributedDataParallel, name)] + comm_hooks.missing()
    if not hasattr(dist.Reducer, "_reset_state"):
        missing.append("Reducer._reset_state")
    if missing:
        raise UnsupportedError(f"DistributedDataParallel of torch {torch.__version__} lacks {', '.join(missing)}")


def why_not_carried(ddp: DistributedDataParallel) -> str:
    """Return why no new communicator could be put below the wrapper; empty if one could. Touches no reducer."""
    return comm_hooks.why_not_carried(ddp)


def without_peers(ddp: Any) -> None:
    """Let the next forward and backward communicate nothing."""
    ddp.require_backward_grad_sync = False
    if ddp.static_graph:
        ddp._static_graph_delay_allreduce_enqueued = True


_required: weakref.WeakKeyDictionary[DistributedDataParallel, frozenset[str]] = weakref.WeakKeyDictionary()
"""Names of the parameters that required gradients when the wrapper was built: those that its reducer has."""


@contextmanager
def as_built(ddp: DistributedDataParallel) -> Iterator[None]:
    """Let parameters require gradients as they did when the wrapper was built.

    A script may have frozen some, as GANs take turns.
    """
    built = _required.get(ddp)  # none where the wrapper is a copy
    named = ddp.module.named_parameters() if built is not None else ()
    others = [p for name, p in named if p.requires_grad != (name in (built or ()))]
    for parameter in others:
        parameter.requires_grad_(not parameter.requires_grad)
    try:
        yield
    finally:
        for parameter in others:
            parameter.requires_grad_(not parameter.requires_grad)


def new_reducer(ddp: DistributedDataParallel, wanted: Layout) -> None:
    """Make a new reducer on the group's present communicator. Where `wanted` is empty, it has the layout that DDP starts with.

    Raises UnsupportedError.
    """
    if reason := why_not_carried(ddp):
        raise UnsupportedError(reason)
    with as_built(ddp), _assignment(wanted, ddp.bucket_bytes_cap):
        parameters, sparse = ddp._build_params_for_reducer()
        names = ddp._build_debug_param_to_name_mapping(parameters)
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


def note_built(ddp: DistributedDataParallel) -> None:
    _required[ddp] = frozenset(name for name, p in ddp.module.named_parameters() if p.requires_grad)


def install(
    on_built: Callable[[DistributedDataParallel], None], before_forward: Callable[[Any, Callable[..., Any]], Any]
) -> None:
    """Call `on_built` for each wrapper that is built, and let `before_forward` run `_pre_forward`, where a forward communicates."""
    original_init: Callable[..., None] = DistributedDataParallel.__init__
    original_pre: Callable[..., Any] = DistributedDataParallel._pre_forward

    @functools.wraps(original_init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        original_init(self, *args, **kwargs)
        note_built(self)
        on_built(self)

    @functools.wraps(original_pre)
    def _pre_forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return before_forward(self, lambda: original_pre(self, *args, **kwargs))

    setattr(DistributedDataParallel, "__init__", __init__)  # noqa: B010 - mypy forbids the assignment
    setattr(DistributedDataParallel, "_pre_forward", _pre_forward)  # noqa: B010 - the same
