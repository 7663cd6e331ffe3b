from __future__ import annotations

import pytest

from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.journals import journal_copy as wire
from torchrelay.protocol.messages import JournalContent
from torchrelay.protocol.names import MAX_FRAME_BYTES


def parts(frame: bytes) -> tuple[wire.FrameHead, bytes]:
    return wire.read_frame(frame[: wire.FRAME_BYTES]), frame[wire.FRAME_BYTES :]


def read_and_check(frame: bytes) -> None:
    head, payload = parts(frame)
    wire.check(head, payload[: head.length_bytes])


def test_what_is_packed_can_be_read() -> None:
    head, payload = parts(wire.frame(wire.GATE, 41, b"journal"))
    wire.check(head, payload)
    assert (head.kind, head.number, head.length_bytes, payload) == (wire.GATE, 41, 7, b"journal")
    token = b"t" * wire.TOKEN_BYTES
    assert wire.read_greeting(wire.greeting(token, "n1.w0")[: wire.GREETING_BYTES]) == (token, 5)
    assert wire.read_answer(wire.answer(41)) == 41


@pytest.mark.parametrize("place", [0, 1, 9, wire.FRAME_BYTES, wire.FRAME_BYTES + 3])
def test_a_flipped_bit_is_found(place: int) -> None:
    frame = bytearray(wire.frame(wire.BOUNDARY, 7, b"journal"))
    frame[place] ^= 2
    with pytest.raises(FrameError):
        read_and_check(bytes(frame))


def test_garbage_and_oversize_frames_are_refused() -> None:
    with pytest.raises(FrameError, match="no worker with journals"):
        wire.read_greeting(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".ljust(wire.GREETING_BYTES))
    with pytest.raises(FrameError, match="is no journal"):
        wire.read_frame(wire._FRAME.pack(wire.GATE, 0, MAX_FRAME_BYTES + 1, 0))
    with pytest.raises(FrameError, match="is no journal"):
        wire.read_frame(wire._FRAME.pack(9, 0, 1, 0))


def test_as_many_journals_are_kept_as_the_worker_keeps_itself() -> None:
    copy = wire.JournalCopy()
    for number in range(10):
        for kind in (wire.BOUNDARY, wire.GATE):
            payload = b"%d" % number
            copy.keep(
                *parts(wire.frame(kind, number, wire.in_parts([payload], ()) if kind == wire.BOUNDARY else payload))
            )
    copy.keep(*parts(wire.frame(wire.SET_UP, 0, b"first")))
    copy.keep(*parts(wire.frame(wire.SET_UP, 0, b"second")))
    assert copy.content("n1.w0") == JournalContent("n1.w0", {7: b"7", 8: b"8", 9: b"9"}, {8: b"8", 9: b"9"}, b"second")


def test_what_a_rank_has_told_of_its_tensors_is_kept_as_long_as_its_agent_keeps_it() -> None:
    copy = wire.JournalCopy()
    for number in range(10):
        copy.keep(*parts(wire.frame(wire.CHECK, number, b"%d" % number)))
    copy.keep(*parts(wire.frame(wire.CHECK, 9, b"again")))
    assert copy.content("n1.w0").checks == {4: b"4", 5: b"5", 6: b"6", 7: b"7", 8: b"8", 9: b"again"}


def test_parts_that_came_before_are_not_sent_again() -> None:
    copy, large = wire.JournalCopy(), bytes(50_000)
    before: list[bytes] = []
    for number in range(5):
        now = [b"head %d" % number, large, b"changed in 3" if number >= 3 else b"as it was"][: 3 if number else 2]
        if number:
            now[1] = before[1]
        payload = wire.in_parts(now, before)
        assert (len(payload) > 1000) is (number == 0)
        copy.keep(*parts(wire.frame(wire.BOUNDARY, number, payload)))
        before = now
    tail = b"changed in 3"
    assert copy.content("n1.w0").boundaries == {
        2: b"head 2" + large + b"as it was",
        3: b"head 3" + large + tail,
        4: b"head 4" + large + tail,
    }


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x01\0\0",
        wire.in_parts([b"a", b"b"], ())[:-1],
        wire.in_parts([b"a"], ()) + b"more",
        wire.in_parts([b"a"], [b"a"][:0])[:4],
    ],
)
def test_a_boundary_that_is_not_in_parts_is_refused(payload: bytes) -> None:
    with pytest.raises(FrameError):
        wire.JournalCopy().keep(*parts(wire.frame(wire.BOUNDARY, 1, payload)))


def test_a_part_of_a_boundary_that_never_came_is_refused() -> None:
    part = b"a"
    with pytest.raises(FrameError):
        wire.JournalCopy().keep(*parts(wire.frame(wire.BOUNDARY, 1, wire.in_parts([part], [part]))))
