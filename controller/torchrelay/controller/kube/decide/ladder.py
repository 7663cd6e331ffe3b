"""When a rank is lost: the best way on that is still open, and why each better one is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchrelay.protocol import kube_names as kube

WAIT, FAIL = "wait", "fail"
MAX_RESTARTS_AT_STEP = 2
"""More at the same step would meet the same end."""


@dataclass(frozen=True)
class Found:
    """A checkpoint on disk. `broken`: why it cannot be used, or empty."""

    path: str
    step: int
    broken: str = ""


@dataclass(frozen=True)
class Situation:
    """`allowed`: the rungs of the annotation. `waited_s` of at most `wait_s` for spares that are `coming`.

    `jit_refused`: why survivors cannot save what all need, or empty. `restarts`: at which steps the job was begun again before.
    """

    rank: int
    allowed: Sequence[str]
    warm_spares: int
    coming: int
    waited_s: float
    wait_s: float
    checkpoint_dir: str
    jit_refused: str
    jit_step: int
    found: Sequence[Found] = ()
    restarts: Sequence[int] = ()


@dataclass(frozen=True)
class Rung:
    """`checkpoint`: what to begin from, where that is it. `reason`: all rungs above it too."""

    rung: str
    reason: str
    checkpoint: str = ""


def choose_rung(s: Situation) -> Rung:
    refused: list[str] = []
    for rung, choose in _RUNGS:
        if rung not in s.allowed:
            refused.append(f"{rung} is not among the rungs that the job allows")
            continue
        found, because = choose(s)
        if found is not None:
            return Rung(found.rung, "; ".join([*refused, because]), found.checkpoint)
        refused.append(because)
    return Rung(FAIL, f"rank {s.rank} is lost and nothing is left: " + "; ".join(refused))


def _next_spare(s: Situation) -> tuple[Rung | None, str]:
    if s.warm_spares:
        return Rung(kube.NEXT_SPARE, ""), f"{s.warm_spares} spares are warm"
    if s.coming and s.waited_s < s.wait_s:
        return Rung(
            WAIT, ""
        ), f"{s.coming} spares are being made; waits up to {s.wait_s:.0f} s ({s.waited_s:.0f} s so far)"
    if s.coming:
        return None, f"no spare came within {s.wait_s:.0f} s"
    return None, "there is no spare"


def _jit_checkpoint(s: Situation) -> tuple[Rung | None, str]:
    if not s.checkpoint_dir:
        return None, "no checkpoint can be saved: the job names no folder for it"
    if s.jit_refused:
        return None, f"no checkpoint can be saved: {s.jit_refused}"
    if _worn_out(s, s.jit_step):
        return None, f"the job has begun again at step {s.jit_step} {MAX_RESTARTS_AT_STEP} times"
    return Rung(kube.JIT_CHECKPOINT, "", s.checkpoint_dir), f"the survivors save step {s.jit_step}"


def _checkpoint(s: Situation) -> tuple[Rung | None, str]:
    refused = []
    for found in sorted(s.found, key=lambda f: -f.step):
        if found.broken:
            refused.append(f"{found.path} is not whole: {found.broken}")
        elif _worn_out(s, found.step):
            refused.append(f"{found.path}: the job has begun again at step {found.step} {MAX_RESTARTS_AT_STEP} times")
        else:
            chosen = f"{found.path} is the newest whole checkpoint (step {found.step})"
            return Rung(kube.CHECKPOINT, "", found.path), "; ".join([*refused, chosen])
    return None, "; ".join(refused) or "there is no checkpoint on disk"


def _worn_out(s: Situation, step: int) -> bool:
    return list(s.restarts).count(step) >= MAX_RESTARTS_AT_STEP


_RUNGS = ((kube.NEXT_SPARE, _next_spare), (kube.JIT_CHECKPOINT, _jit_checkpoint), (kube.CHECKPOINT, _checkpoint))
