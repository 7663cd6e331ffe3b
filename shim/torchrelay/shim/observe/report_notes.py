"""What a protection report notes besides gaps: what is taken for granted, and what is copied in each step."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

import torch

from torchrelay.shim.observe import rounding
from torchrelay.shim.script import sites

if TYPE_CHECKING:
    from torchrelay.shim.step.boundary_snapshot import BoundarySnapshot
    from torchrelay.shim.step.engine import Engine

_MOST_NAMED = 20
"""Of what is taken for data."""


def notes(engine: Engine, commit: BoundarySnapshot, changing: Collection[str]) -> tuple[str, ...]:
    """Return the notes. `changing`: paths of what was taken for data, and does change: these are gaps."""
    own = engine.own
    return (
        *(f"{file}: its loops are not seen: {reason}" for file, reason in sites.LEFT_ALONE.items()),
        *(
            f"{path}: {length} objects, taken for data that does not change"
            for _, length, path in commit.state.bulk[:_MOST_NAMED]
            if path not in changing
        ),
        *engine.comms.notes(),
        *([rounding.note(rounding.Rounding.here())] if torch.cuda.is_initialized() else []),
        *([f"what this rank alone holds is not copied at each head: {own.why_not}"] if own and own.why_not else []),
        *_copied(engine),
    )


def _copied(engine: Engine) -> Iterator[str]:
    if size := engine.updates.early.copied_bytes:
        yield (
            "updates before the gate (optimizers in turn, a closure that is called several times, communication within a "
            f"step): what they write is copied in each step, {_in_mib(size)}"
        )
    if size := engine.updates.writes.copied_bytes:
        yield (
            "large tensors that the step writes to before the optimizer step (a queue, a memory bank, an average): they are "
            f"copied in each step, {_in_mib(size)}"
        )
    if size := engine.gradients.most_copied_bytes:
        yield (
            "gradients are kept across optimizer steps: those that the next step adds to are copied in each step, "
            f"{_in_mib(size)}"
        )
    batches = engine.draws.batches
    if batches.written:
        yield (
            f"steps write into their batch in place: each batch is copied when it is drawn, {_in_mib(batches.copied_bytes)}, so "
            "that a step can be done again"
        )


def _in_mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"
