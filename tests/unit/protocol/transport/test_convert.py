"""Every message has a protobuf of the same name and fields, and survives the way there and back."""

from __future__ import annotations

import dataclasses
import types
import typing
from typing import Any

import pytest

from torchrelay.protocol import messages, relay_pb2
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.transport import convert
from torchrelay.protocol.transport.wire import field_types, member_name

CLASSES = [c for c in vars(messages).values() if isinstance(c, type) and dataclasses.is_dataclass(c)]
MEMBERS = [(u, c) for u in convert.UNIONS for c in typing.get_args(getattr(messages, u))]
SCALARS: dict[Any, list[Any]] = {
    int: [-1, 2**62],
    float: [0.125, -1e300],
    str: ["", "Zeile 1\nZeile 2 ✓"],
    bytes: [b"", bytes(range(256))],
    bool: [False, True],
}


def sample(hint: Any, variant: int) -> Any:
    if hint in SCALARS:
        return SCALARS[hint][variant]
    if isinstance(hint, types.UnionType):
        members = typing.get_args(hint)
        return build(members[-1 - variant], variant)
    if dataclasses.is_dataclass(hint):
        return build(hint, variant)
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is dict:
        return {sample(arguments[0], v): sample(arguments[1], v) for v in range(variant + 1)}
    return tuple(sample(arguments[0], v) for v in range(variant * 2))


def build(cls: Any, variant: int) -> Any:
    return cls(**{name: sample(hint, variant) for name, hint in field_types(cls).items()})


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_a_message_has_the_same_fields_as_its_protobuf(cls: type) -> None:
    descriptor = relay_pb2.DESCRIPTOR.message_types_by_name[cls.__name__]
    assert [f.name for f in descriptor.fields] == list(field_types(cls))


def test_every_protobuf_belongs_to_a_message_or_a_union() -> None:
    assert set(relay_pb2.DESCRIPTOR.message_types_by_name) == {c.__name__ for c in CLASSES} | set(convert.UNIONS)


@pytest.mark.parametrize("union", convert.UNIONS)
def test_a_union_has_a_member_for_each_of_its_classes(union: str) -> None:
    (oneof,) = relay_pb2.DESCRIPTOR.message_types_by_name[union].oneofs
    assert {f.name: f.message_type.name for f in oneof.fields} == {
        member_name(c.__name__): c.__name__ for c in typing.get_args(getattr(messages, union))
    }


@pytest.mark.parametrize("variant", [0, 1])
@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_a_message_survives_the_way_over_the_wire(cls: Any, variant: int) -> None:
    message = build(cls, variant)
    there = getattr(relay_pb2, cls.__name__).FromString(convert.to_proto(message).SerializeToString())
    assert convert.from_proto(there) == message


@pytest.mark.parametrize(("union", "cls"), MEMBERS, ids=lambda v: v if isinstance(v, str) else v.__name__)
def test_a_member_survives_inside_its_union(union: str, cls: Any) -> None:
    envelope = getattr(relay_pb2, union)
    message = build(cls, 1)
    assert convert.from_proto(envelope.FromString(convert.wrap(envelope, message).SerializeToString())) == message


def test_an_empty_union_is_refused() -> None:
    with pytest.raises(FrameError, match="FromAgent holds no message"):
        convert.from_proto(relay_pb2.FromAgent())
    with pytest.raises(FrameError, match="ShimReport holds no message"):
        convert.from_proto(relay_pb2.FromAgent(from_worker=relay_pb2.FromWorker(worker="n0.w0")))


def test_a_message_of_another_union_is_refused() -> None:
    with pytest.raises(FrameError, match="Commit is no member of FromAgent"):
        convert.wrap(relay_pb2.FromAgent, messages.Commit(1))


@pytest.mark.parametrize(
    "message",
    [messages.Commit(2**63), messages.ToWorker("w", messages.Hello("", "", 1, "", False))],
    ids=["integer of 65 bits", "report as order"],
)
def test_a_value_that_does_not_fit_is_refused(message: Any) -> None:
    with pytest.raises(FrameError):
        convert.to_proto(message)


def test_undecodable_text_is_made_readable_instead_of_failing() -> None:
    message = messages.ScriptFailed("OSError", "no such file: a\udcff", 1, 3)
    assert convert.from_proto(convert.to_proto(message)).message == "no such file: a\\udcff"
