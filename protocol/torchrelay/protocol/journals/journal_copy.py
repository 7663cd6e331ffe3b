"""How a worker's journals get to the agent of another node, so that they survive the loss of their own node.

Standard library only. A new process unpickles these journals, so both ends prove who they are. Each worker has one connection of
TLS 1.3 to the agent with the one certificate that the controller told it together with the port. The worker shows the token that
came with the certificate. First comes a greeting, then frames, each a journal. A boundary's journal comes in parts, without the
parts that came with the previous boundary. The agent answers the frame of a gate with the gate's number, once it has kept it. A
rank waits for that answer before it passes the gate, so the copy has what a lost rank needs behind a gate. Frames come in order:
all frames before that of a gate are kept, too. What the rank tells the controller of its tensors comes, too: if the controller is
on the same machine and is lost with it, the next controller has not heard it.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.journals.journal import BOUNDARY_SLOTS, GATE_SLOTS
from torchrelay.protocol.messages import JournalContent
from torchrelay.protocol.names import MAX_FRAME_BYTES
from torchrelay.protocol.transport.last_reports import CHECKS_KEPT

SET_UP = 0
BOUNDARY = 1
GATE = 2
CHECK = 3
TOKEN_BYTES = 32
MAX_WORKER_BYTES = 64

_GREETING = struct.Struct("<8s32sB")
_MAGIC = b"TRJCPY02"
_FRAME = struct.Struct("<BqII")
_COUNT = struct.Struct("<I")
_AS_BEFORE = 0xFFFFFFFF
"""In place of a part's length: the part of the boundary before."""
_ANSWER = struct.Struct("<q")
GREETING_BYTES = _GREETING.size
FRAME_BYTES = _FRAME.size
ANSWER_BYTES = _ANSWER.size


@dataclass(frozen=True)
class FrameHead:
    """`kind`: one of the four above; `number`: of the boundary, or of the gate's boundary."""

    kind: int
    number: int
    length_bytes: int
    crc: int


def invitation(token: bytes, certificate: str) -> bytes:
    """Return what a worker has to know of the agent that is to keep its journals. It is secret. `certificate`: PEM."""
    return token + certificate.encode()


def read_invitation(data: bytes) -> tuple[bytes, str]:
    """Return token and certificate. Raises FrameError."""
    try:
        return data[:TOKEN_BYTES], data[TOKEN_BYTES:].decode("ascii")
    except UnicodeDecodeError as e:
        raise FrameError("that invites nobody to send journals") from e


def greeting(token: bytes, worker: str) -> bytes:
    name = worker.encode()
    return _GREETING.pack(_MAGIC, token, len(name)) + name


def read_greeting(data: bytes) -> tuple[bytes, int]:
    """Return the token, and the length of the worker's name that follows. Raises FrameError."""
    magic, token, length = _GREETING.unpack(data)
    if magic != _MAGIC or not 0 < length <= MAX_WORKER_BYTES:
        raise FrameError("that is no worker with journals to keep")
    return token, length


def frame(kind: int, number: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, number, len(payload), _crc(kind, number, payload)) + payload


def in_parts(parts: Sequence[bytes], before: Sequence[bytes]) -> bytes:
    """Return the payload of a boundary's frame, without the parts that are the same objects as in `before`.

    `before`: the parts of the previous boundary.
    """
    new = [place >= len(before) or before[place] is not part for place, part in enumerate(parts)]
    lengths = [len(part) if is_new else _AS_BEFORE for part, is_new in zip(parts, new, strict=True)]
    head = struct.pack(f"<{1 + len(parts)}I", len(parts), *lengths)
    return b"".join((head, *(part for part, is_new in zip(parts, new, strict=True) if is_new)))


def read_parts(payload: bytes, before: Sequence[bytes]) -> tuple[bytes, ...]:
    """Return a boundary's parts. The ones that the frame leaves out are taken from `before`. Raises FrameError."""
    try:
        (count,) = _COUNT.unpack_from(payload)
        at = _COUNT.size * (1 + count)
        lengths = struct.unpack_from(f"<{count}I", payload, _COUNT.size)
        parts = []
        for place, length in enumerate(lengths):
            if length == _AS_BEFORE:
                parts.append(before[place])
            else:
                parts.append(payload[at : at + length])
                at += length
    except (struct.error, IndexError) as e:
        raise FrameError("a boundary's journal is not in the parts that it should have") from e
    if at != len(payload):
        raise FrameError("a boundary's journal is not as long as its parts")
    return tuple(parts)


def read_frame(data: bytes) -> FrameHead:
    """Read a frame's head. Raises FrameError for an unknown kind, or a journal larger than agents pass on."""
    head = FrameHead(*_FRAME.unpack(data))
    if head.kind not in (SET_UP, BOUNDARY, GATE, CHECK) or head.length_bytes > MAX_FRAME_BYTES:
        raise FrameError(f"a frame of kind {head.kind} with {head.length_bytes} bytes is no journal")
    return head


def check(head: FrameHead, payload: bytes) -> None:
    """Raise FrameError if the journal was damaged on its way."""
    if _crc(head.kind, head.number, payload) != head.crc:
        raise FrameError(f"the journal of boundary {head.number} was damaged on its way")


def answer(number: int) -> bytes:
    return _ANSWER.pack(number)


def read_answer(data: bytes) -> int:
    return int(_ANSWER.unpack(data)[0])


def _crc(kind: int, number: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(_ANSWER.pack(number) + bytes((kind,))))


@dataclass
class JournalCopy:
    """The newest journals of one worker: as many as the worker itself keeps."""

    boundaries: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    gates: dict[int, bytes] = field(default_factory=dict)
    set_up: bytes = b""
    checks: dict[int, bytes] = field(default_factory=dict)
    _latest: tuple[bytes, ...] = ()
    """The parts of the boundary that came last."""

    def keep(self, head: FrameHead, payload: bytes) -> None:
        """Keep a journal, and drop the oldest one if there are too many. Raises FrameError."""
        if head.kind == SET_UP:
            self.set_up = payload
        elif head.kind == BOUNDARY:
            self.boundaries[head.number] = self._latest = read_parts(payload, self._latest)
            _keep_newest(self.boundaries, BOUNDARY_SLOTS)
        elif head.kind == CHECK:
            self.checks[head.number] = payload
            _keep_newest(self.checks, CHECKS_KEPT)
        else:
            self.gates[head.number] = payload
            _keep_newest(self.gates, GATE_SLOTS)

    def content(self, worker: str) -> JournalContent:
        boundaries = {number: b"".join(parts) for number, parts in self.boundaries.items()}
        return JournalContent(worker, boundaries, dict(self.gates), self.set_up, checks=dict(self.checks))


def _keep_newest(kept: dict[int, Any], count: int) -> None:
    for number in sorted(kept)[:-count]:
        del kept[number]
