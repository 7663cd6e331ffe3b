"""Frames between shim and agent: what is sent arrives, and what is no message is refused."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from torchrelay.protocol.errors import ChannelClosedError, FrameError
from torchrelay.protocol.messages import Assign, Hello, Plan, ReplicaCheck, Report, ScriptFailed, Standing, Warm
from torchrelay.protocol.names import MAX_FRAME_BYTES
from torchrelay.protocol.transport import wire

HEAD = wire.HEAD_BYTES
HELLO = b'{"@message":"Hello","worker":"w","token":"t","pid":1,"python_version":"3","spare":false'


@pytest.mark.parametrize(
    "message",
    [
        Assign(3, 1, 4, {"RANK": "1", "ÜMLAUT": "a\udcff"}, bytes(range(256))),
        Plan(3, 7, "shadow", b"journal", offline=True),
        Standing(-1, 2**63 - 1, 0, "gate", "", "host", 1, b"", 0),
        ReplicaCheck(1, {"model.weight": "0" * 16}, ("model.weight",)),
        Report("train.py", 3, 1, 2, 3, ("a", "b"), ()),
    ],
    ids=lambda m: type(m).__name__,
)
def test_a_message_survives(message: Any) -> None:
    frame = wire.encode(message)
    assert wire.frame_length(frame[:HEAD]) == len(frame) - HEAD
    assert wire.decode(frame[HEAD:], wire.REPORTS | wire.ORDERS) == message


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"no kind":1}',
        b'{"@message":"Sesame"}',
        b'{"@message":["Warm"]}',
        b'{"@message":"Commit","generation":1}',
        b'{"@message":"Warm"}',
        b'{"@message":"Warm","torch_version":1}',
        b'{"@message":"Warm","torch_version":"2","more":1}',
        HELLO.replace(b'"pid":1', b'"pid":true') + b"}",
        HELLO.replace(b'"pid":1', b'"pid":1.5') + b"}",
        HELLO.replace(b'"pid":1', b'"pid":9223372036854775808') + b"}",
        HELLO.replace(b'"pid":1', b'"pid":' + b"9" * 5000) + b"}",
        b'{"@message":"ReplicaCheck","boundary":1,"ddp_paths":"path"}',
        b'{"@message":"ReplicaCheck","boundary":1,"digests":["path"]}',
        b'{"@message":"CheckpointSaved","generation":1,"size_bytes":null}',
    ],
    ids=lambda d: d[:40].decode("ascii", "replace") + f"...{len(d)}",
)
def test_what_is_no_report_is_refused(data: bytes) -> None:
    with pytest.raises(FrameError):
        wire.decode(data, wire.REPORTS)


def test_bytes_that_are_not_base64_are_refused() -> None:
    with pytest.raises(FrameError):
        wire.decode(b'{"@message":"Assign","generation":1,"rank":1,"world_size":1,"set_up":"!"}', wire.ORDERS)


def test_a_complete_hello_is_taken() -> None:
    assert wire.decode(HELLO + b"}", wire.REPORTS) == Hello("w", "t", 1, "3", False)


def test_an_oversize_frame_is_refused_by_both_sides() -> None:
    with pytest.raises(FrameError, match="larger than a frame may be"):
        wire.encode(Plan(1, 1, "enter", bytes(MAX_FRAME_BYTES)))
    with pytest.raises(FrameError, match="was announced"):
        wire.frame_length((MAX_FRAME_BYTES + 1).to_bytes(HEAD, "big"))


def test_a_blocking_socket_gives_message_after_message_and_then_the_end() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(wire.encode(Warm("1")) + wire.encode(Warm("2")) + wire.encode(Warm("3"))[:-1])
        theirs.shutdown(socket.SHUT_WR)
        assert [wire.receive(ours, wire.REPORTS) for _ in range(2)] == [Warm("1"), Warm("2")]
        with pytest.raises(ChannelClosedError, match="the peer closed after"):
            wire.receive(ours, wire.REPORTS)


def test_every_report_survives_the_way_whatever_its_fields_are_called() -> None:
    failed = ScriptFailed("ValueError", "no such file", 1, 3)
    assert wire.decode(wire.encode(failed)[wire.HEAD_BYTES :], wire.REPORTS) == failed
