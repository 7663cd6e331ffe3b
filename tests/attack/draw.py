"""Draws messages of every type from a seed: well formed, and absurd in some of their fields.

What there is to draw is read from the message classes themselves: a new message, or a new field, is drawn without a word here.
"""

from __future__ import annotations

import dataclasses
import random
import types
import typing
from dataclasses import dataclass
from typing import Any

from torchrelay.protocol import messages as msg
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.transport.convert import wrap
from torchrelay.protocol.transport.wire import field_types
from torchrelay.protocol.words.positions import StandingPosition

_WHOLE = (
    -(1 << 63),
    -(1 << 31) - 1,
    -7,
    -1,
    0,
    1,
    2,
    3,
    1 << 16,
    (1 << 17) + 1,
    (1 << 31) - 1,
    1 << 31,
    1 << 53,
    (1 << 63) - 1,
)
_REAL = (float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 1e-300, 1e9, 1e300)
_LONG_CHARS = (1 << 12) + 1
_MANY = 3000
_ODD_TEXT = ("", "\0", "../../etc/passwd", "a b", "%s%n", "\N{PILE OF POO}", "\udcff", "train-0:0.1", "9" * 30)
SOON_ABSURD = 0.3
"""Of all scalars; the others are what a process of the job could say."""
TYPES = {
    kind.__name__: kind
    for union in ("FromAgent", "ToAgent", "ShimReport", "ShimOrder")
    for kind in typing.get_args(getattr(msg, union))
}
REPORTS: tuple[type, ...] = typing.get_args(msg.ShimReport)
FROM_AGENT: tuple[type, ...] = tuple(k for k in typing.get_args(msg.FromAgent) if k is not msg.FromWorker)


@dataclass
class Known:
    """What a peer knows of its job, so that what it says is about something. `steps`: boundaries and generations there are."""

    workers: tuple[str, ...] = ("n0.w0", "n0.w1", "n1.w0")
    steps: tuple[int, ...] = (-1, 0, 1, 2, 4, 5, 6)
    hosts: tuple[str, ...] = ("127.0.0.1", "10.0.0.1")


class Draw:
    def __init__(self, seed: object) -> None:
        self.chance = random.Random(str(seed))

    def message(self, kind: type, known: Known) -> Any:
        return self._made(kind, known)

    def report(self, known: Known) -> Any:
        return self.message(self.chance.choice(REPORTS), known)

    def from_agent(self, known: Known) -> Any:
        """Whatever an agent, or a process of its, could say; two of three are a process's."""
        if self.chance.random() < 2 / 3:
            return msg.FromWorker(self.chance.choice(known.workers), self.report(known))
        return self.message(self.chance.choice(FROM_AGENT), known)

    def packed(self, envelope: Any, known: Known) -> tuple[str, Any]:
        """The name of what is drawn, and its protobuf; what protobuf cannot hold is drawn again."""
        while True:
            drawn = self.from_agent(known)
            name = type(drawn.report if isinstance(drawn, msg.FromWorker) else drawn).__name__
            try:
                return name, wrap(envelope, drawn)
            except FrameError:
                continue

    def damaged(self, data: bytes) -> bytes:
        """Cut, with changed bytes, or with others put in."""
        changed = bytearray(data)
        for _ in range(self.chance.randrange(1, 5)):
            place = self.chance.randrange(len(changed) + 1)
            match self.chance.randrange(3):
                case 0:
                    del changed[place:]
                case 1:
                    changed[place:place] = self.chance.randbytes(self.chance.randrange(1, 20))
                case _:
                    changed[place : place + 1] = self.chance.randbytes(1)
        return bytes(changed)

    def garbage(self) -> bytes:
        return self.chance.randbytes(self.chance.choice((1, 3, 9, 64, 1000, 70_000)))

    def _made(self, cls: Any, known: Known) -> Any:
        return cls(**{name: self._value(name, hint, known) for name, hint in field_types(cls).items()})

    def _value(self, name: str, hint: Any, known: Known) -> Any:
        if isinstance(hint, types.UnionType):
            return self._made(self.chance.choice(typing.get_args(hint)), known)
        if dataclasses.is_dataclass(hint):
            return self._made(hint, known)
        if typing.get_origin(hint) is tuple:
            item = typing.get_args(hint)[0]
            return tuple(self._value(name, item, known) for _ in range(self._count(dataclasses.is_dataclass(item))))
        if typing.get_origin(hint) is dict:
            key, value = typing.get_args(hint)
            count = self._count(False)
            return {self._value(name, key, known): self._value(name, value, known) for _ in range(count)}
        return self._scalar(name, hint, known)

    def _count(self, of_messages: bool) -> int:
        if self.chance.random() < 0.02:
            return 40 if of_messages else _MANY
        return self.chance.randrange(4)

    def _scalar(self, name: str, hint: Any, known: Known) -> Any:
        absurd = self.chance.random() < SOON_ABSURD
        if hint is bool:
            return self.chance.random() < 0.5
        if hint is int:
            return self.chance.choice(_WHOLE if absurd else known.steps)
        if hint is float:
            return self.chance.choice(_REAL if absurd else (0.0, 0.5, 3.0))
        if hint is bytes:
            return self.chance.randbytes(self.chance.choice((0, 1, 40, 5000)))
        assert hint is str, f"{name} is of a type that nobody draws: {hint}"
        if absurd:
            return self.chance.choice((*_ODD_TEXT, "x" * _LONG_CHARS))
        if name == "position":
            return self.chance.choice(list(StandingPosition)).value
        return self.chance.choice(
            known.workers if name in ("worker", "in_place_of") else (*known.hosts, "w", "gloo", "still")
        )
