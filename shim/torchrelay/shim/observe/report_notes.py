"""What the protection report says beside gaps: what is seen otherwise than a user might think, and what is copied in each step."""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

import torch

from torchrelay.shim.observe import rounding
from torchrelay.shim.script import sites

if TYPE_CHECKING:
    from torchrelay.shim.step.boundary_snapshot import BoundarySnapshot
    from torchrelay.shim.step.engine import Engine

_MOST_NAMED = 20
"""Of what is taken for data."""


def notes(engine: Engine, commit: BoundarySnapshot, changed: Container[Any]) -> tuple[str, ...]:
    """`changed`: paths of what was taken for data and has changed, which is a gap."""
    told = [f"{file}: its loops are not seen: {reason}" for file, reason in sites.LEFT_ALONE.items()]
    told += [
        f"{path}: {length} objects, taken for data that does not change"
        for _, length, path in commit.state.bulk[:_MOST_NAMED]
        if path not in changed
    ]
    told += engine.comms.notes()
    if torch.cuda.is_initialized():
        told.append(rounding.note(rounding.Rounding.here()))
    if engine.own is not None and engine.own.why_not:
        told.append(f"what this rank alone holds is not copied at each head: {engine.own.why_not}")
    return (*told, *_copied_in_each_step(engine))


def _copied_in_each_step(engine: Engine) -> list[str]:
    told = []
    if engine.updates.early.copied_bytes:
        told.append(
            "updates before the gate (optimizers in turn, a closure that is called several times, communication within a "
            f"step): what they write is copied in each step, {_mib(engine.updates.early.copied_bytes)}"
        )
    if engine.updates.writes.copied_bytes:
        told.append(
            "large tensors that the step writes to before the optimizer step (a queue, a memory bank, an average): they are "
            f"copied in each step, {_mib(engine.updates.writes.copied_bytes)}"
        )
    if engine.gradients.most_copied_bytes:
        told.append(
            "gradients are kept across optimizer steps: those that the next step adds to are copied in each step, "
            f"{_mib(engine.gradients.most_copied_bytes)}"
        )
    if engine.draws.batches.written:
        told.append(
            "steps write into their batch in place: each batch is copied when it is drawn, "
            f"{_mib(engine.draws.batches.copied_bytes)}, so that a step can be done again"
        )
    return told


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.1f} MiB"
