"""Watches on what training computes: the one parser of `--watch`, and what counts as suspect. Standard library only."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from torchrelay.protocol.errors import UserError

LOSS = "loss"
GRAD_NORM = "grad-norm"
REPLICAS = "replicas"
WATCHED = (LOSS, GRAD_NORM, REPLICAS)
ALERT = "alert"
STOP = "stop"
RETRY = "retry"
ACTIONS = (ALERT, STOP, RETRY)
"""`alert`: say it and go on; `stop`: end the job before the update; `retry`: another device does the step again."""
MEAN_OF = 64
MINIMUM_STEPS = 8
"""Before so many steps nobody knows what is usual."""


@dataclass(frozen=True)
class NumberWatch:
    """One watch. `over`: a number is suspect from so many times the mean of the latest steps on; 0: only if it is not finite.

    `every`: steps between two comparisons of replicas, beside those that are made anyway.
    """

    what: str
    action: str = ALERT
    over: float = 0.0
    every: int = 0

    def __str__(self) -> str:
        text = f"{self.what}:action={self.action}"
        text += f",over={self.over:g}" if self.over else ""
        return text + (f",every={self.every}" if self.every else "")


def parse_watch(text: str) -> NumberWatch:
    """Parse a watch: `loss`, `grad-norm:action=retry,over=10`, `replicas:every=50`. Raises UserError with what would be right."""
    what, _, rest = text.partition(":")
    if what not in WATCHED:
        raise UserError(f"--watch {text}: unknown number {what!r}; use one of {', '.join(WATCHED)}")
    allowed = ("action", "every") if what == REPLICAS else ("action", "over")
    values: dict[str, str] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or key not in allowed or key in values:
            raise UserError(
                f"--watch {text}: {part!r} is not understood; {what} takes {', '.join(k + '=' for k in allowed)}, each once"
            )
        values[key] = value
    action = values.get("action", ALERT)
    if action not in ACTIONS:
        raise UserError(f"--watch {text}: unknown action {action!r}; use one of {', '.join(ACTIONS)}")
    return NumberWatch(what, action, _over(text, values.get("over")), _every(text, values.get("every")))


def parse_watches(text: str) -> tuple[NumberWatch, ...]:
    """Parse several watches, separated by semicolons. Raises UserError."""
    return tuple(parse_watch(part) for part in text.split(";") if part)


def _over(text: str, value: str | None) -> float:
    if value is None:
        return 0.0
    try:
        over = float(value)
    except ValueError:
        over = 0.0
    if not 1.0 < over < math.inf:
        raise UserError(
            f"--watch {text}: over= says how many times the rolling mean is suspect, as in over=10; above 1"
        )
    return over


def _every(text: str, value: str | None) -> int:
    if value is None:
        return 0
    if not (value.isascii() and value.isdigit()) or int(value) < 1:
        raise UserError(f"--watch {text}: every= is a number of steps from 1")
    return int(value)


class Usual:
    """What a number was in the latest steps, and whether one is out of the ordinary."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=MEAN_OF)

    @property
    def mean(self) -> float:
        """Return the mean of the magnitudes; 0 if there are none."""
        return sum(self._latest) / len(self._latest) if self._latest else 0.0

    def suspicion(self, value: float, over: float) -> str:
        """Return why `value` is suspect; empty if it is not."""
        if not math.isfinite(value):
            return f"is {value}"
        if over and len(self._latest) >= MINIMUM_STEPS and abs(value) > over * self.mean:
            return f"is {value:.6g}, more than {over:g} times the mean of the last {len(self._latest)} steps, {self.mean:.6g}"
        return ""

    def add(self, value: float) -> None:
        """Add the number of a step that is done."""
        if math.isfinite(value):
            self._latest.append(abs(value))
