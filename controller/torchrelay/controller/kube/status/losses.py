"""The ranks that a job has lost: where, which rung was taken, what it cost. Pure; a TrainingJob's status has it."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torchrelay.protocol.kube import kube_names as kube

KEPT = 50
BEGIN_AGAIN = (kube.JIT_CHECKPOINT, kube.CHECKPOINT)


STAMP = "%Y-%m-%dT%H:%M:%SZ"


def timestamp(time_s: float) -> str:
    return dt.datetime.fromtimestamp(time_s, dt.timezone.utc).strftime(STAMP)


@dataclass(frozen=True)
class Loss:
    """A loss of `rank` at the time `at_s`, in the step after `step`, because of `reason`.

    `rung`: what was done, empty while that is not known.
    It took `seconds` until training went on, and `steps_redone` steps were done again.
    """

    rank: int
    step: int
    at_s: float
    reason: str
    rung: str = ""
    seconds: float = 0.0
    steps_redone: int = 0


class Losses:
    """The latest losses, the oldest first."""

    def __init__(self, known: Sequence[Loss] = ()) -> None:
        self.known = list(known)

    def add(self, loss: Loss) -> None:
        self.known = [*self.known, loss][-KEPT:]

    def begins_again(self, rung: str) -> None:
        """Take note that all ranks begin again after the latest loss."""
        if self.known and not self.known[-1].rung:
            self.known[-1] = dataclasses.replace(self.known[-1], rung=rung)

    def goes_on(self, now_s: float, step: int | None) -> Loss | None:
        """Take note that all ranks have begun again at `step`. Return the loss after which they did, if it is known."""
        loss = self.known[-1] if self.known else None
        if loss is None or loss.rung not in BEGIN_AGAIN:
            return None
        redone = max(0, loss.step + 1 - step) if step is not None else 0
        self.known[-1] = dataclasses.replace(loss, seconds=now_s - loss.at_s, steps_redone=redone)
        return self.known[-1]

    @property
    def began_with(self) -> str:
        """The reason of the first of the latest losses, since which the job has never come to train again; empty if it has."""
        reason = ""
        for loss in reversed(self.known):
            if loss.rung and (loss.rung not in BEGIN_AGAIN or loss.seconds):
                break
            reason = loss.reason if loss.rung else reason
        return reason

    @property
    def rungs(self) -> dict[str, int]:
        """How often each rung was taken. All rungs are listed: a merge patch takes none away."""
        taken = Counter(loss.rung for loss in self.known)
        return {rung: taken[rung] for rung in kube.FALLBACKS}

    def as_status(self) -> list[dict[str, Any]]:
        return [
            {
                "rank": loss.rank,
                "step": loss.step,
                "at": timestamp(loss.at_s),
                "reason": loss.reason,
                "rung": loss.rung,
                "seconds": round(loss.seconds, 3),
                "stepsRedone": loss.steps_redone,
            }
            for loss in self.known
        ]


def read_losses(status: Sequence[Mapping[str, Any]]) -> tuple[Loss, ...]:
    """Read the losses in a status. Raises KeyError, TypeError, ValueError for what another version has written."""
    return tuple(
        Loss(
            int(s["rank"]),
            int(s["step"]),
            dt.datetime.strptime(s["at"], STAMP).replace(tzinfo=dt.timezone.utc).timestamp(),
            s.get("reason", ""),
            s.get("rung", ""),
            float(s.get("seconds", 0.0)),
            int(s.get("stepsRedone", 0)),
        )
        for s in status
    )
