"""When a rank is lost: the best way on that is still open, and why each better one is not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torchrelay.controller.decide.replacement.respawn import comes_again
from torchrelay.protocol.kube import kube_names as kube

FAIL = "fail"
TAKEN = "taken"
REFUSED = "refused"
MAX_RESTARTS_AT_STEP = 2
"""More at the same step would meet the same end."""


@dataclass(frozen=True)
class LadderCheckpoint:
    """A checkpoint on disk. `broken`: why it cannot be used, or empty. `ours`: an earlier just-in-time one."""

    path: str
    step: int
    broken: str = ""
    ours: bool = False


@dataclass(frozen=True)
class LadderSituation:
    """`allowed`: the rungs of the annotation. `no_spare`: why no spare took over, `not_in_place`: why no process that was
    started again where the lost one had been; both are empty where that was not the trouble.

    `lost_at`: the step at which the rank was lost, `losses_at_step`: how often it was lost there.

    `jit`: a just-in-time checkpoint of `jit_step` that is whole, or why there is none is in `jit_refused`. `restarts`: at which
    steps the job was begun again before. `of_others`: how many just-in-time checkpoints other jobs have in the folder.
    `unseen`: why the folder of checkpoints cannot be looked at.
    """

    rank: int
    allowed: Sequence[str]
    no_spare: str
    checkpoint_dir: str
    jit: str = ""
    jit_step: int = -1
    jit_refused: str = ""
    found: Sequence[LadderCheckpoint] = ()
    of_others: int = 0
    unseen: str = ""
    restarts: Sequence[int] = ()
    not_in_place: str = ""
    lost_at: int = -1
    losses_at_step: int = 1


@dataclass(frozen=True)
class Tried:
    rung: str
    outcome: str
    reason: str


@dataclass(frozen=True)
class Rung:
    """`tried`: from the top, the last one is taken unless it is FAIL. `checkpoint` and `step`: what to begin from.

    `aside`: checkpoints that a script would take for better ones, and that must not be used.
    """

    rung: str
    tried: tuple[Tried, ...]
    checkpoint: str = ""
    step: int = -1
    aside: tuple[str, ...] = ()
    ours: bool = True

    @property
    def reason(self) -> str:
        return "; ".join(f"{t.rung}: {t.reason}" for t in self.tried)


def choose_rung(s: LadderSituation) -> Rung:
    above = ((kube.NEXT_SPARE, s.no_spare), (kube.RESPAWN, s.not_in_place))
    tried = [Tried(name, REFUSED, _above(s, name, refusal)) for name, refusal in above]
    for name, choose in ((kube.JIT_CHECKPOINT, _jit_checkpoint), (kube.CHECKPOINT, _checkpoint)):
        if name not in s.allowed:
            tried.append(Tried(name, REFUSED, "is not among what the job allows"))
            continue
        found, because, aside = choose(s) if not _comes_again(s) else (None, _comes_again(s), ())
        tried.append(Tried(name, TAKEN if found is not None else REFUSED, because))
        if found is not None:
            return Rung(name, tuple(tried), found.path, found.step, () if found.ours else aside, found.ours)
    return Rung(FAIL, tuple(tried))


def _above(s: LadderSituation, rung: str, refusal: str) -> str:
    if rung not in s.allowed:
        return "is not among what the job allows"
    return refusal or "another process for the rank is of no use here"


def _comes_again(s: LadderSituation) -> str:
    """Why the job is not begun again from anywhere, or empty."""
    return comes_again(s.rank, s.lost_at, s.losses_at_step)


def _jit_checkpoint(s: LadderSituation) -> tuple[LadderCheckpoint | None, str, tuple[str, ...]]:
    if not s.checkpoint_dir:
        return None, "no checkpoint can be saved: the job names no folder for it (annotation checkpoint-dir)", ()
    if not s.jit:
        return None, f"no checkpoint can be saved: {s.jit_refused}", ()
    if _worn_out(s, s.jit_step):
        return None, f"the job has begun again at step {s.jit_step} {MAX_RESTARTS_AT_STEP} times", ()
    return (
        LadderCheckpoint(s.jit, s.jit_step, ours=True),
        f"the ranks that live have saved step {s.jit_step} in {s.jit}",
        (),
    )


def _checkpoint(s: LadderSituation) -> tuple[LadderCheckpoint | None, str, tuple[str, ...]]:
    if not s.checkpoint_dir:
        return None, "the job names no folder in which to look (annotation checkpoint-dir)", ()
    if s.unseen:
        return None, s.unseen, ()
    kept_out = f"{s.of_others} just-in-time checkpoints of other jobs are not taken"
    refused = [kept_out] if s.of_others else []
    aside: list[str] = []
    known = [f for f in s.found if not f.ours or kube.JIT_CHECKPOINT in s.allowed]
    for found in sorted(known, key=lambda f: (-f.step, not f.ours)):
        if found.broken:
            refused.append(f"{found.path} is not whole: {found.broken}")
        elif _worn_out(s, found.step):
            refused.append(f"{found.path}: the job has begun again at step {found.step} {MAX_RESTARTS_AT_STEP} times")
        else:
            chosen = f"{found.path} is the newest whole checkpoint (step {found.step})"
            return found, "; ".join([*refused, chosen]), tuple(aside)
        if not found.ours:
            aside.append(found.path)
    return None, "; ".join(refused) or f"there is no checkpoint in {s.checkpoint_dir}", ()


def _worn_out(s: LadderSituation, step: int) -> bool:
    return list(s.restarts).count(step) >= MAX_RESTARTS_AT_STEP
