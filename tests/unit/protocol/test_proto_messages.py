"""The messages of relay.proto come from the dataclasses; a number that a field had is never given to another one."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.repository_script import script

PROTO = (Path(__file__).parents[3] / "protocol/torchrelay/protocol/relay.proto").read_text(encoding="utf-8")
proto_messages = script("proto_messages")
Numbers = proto_messages.Numbers


def test_what_is_made_again_is_the_same() -> None:
    assert proto_messages.with_messages(PROTO) == PROTO


def test_a_new_field_gets_the_number_after_the_largest() -> None:
    assert Numbers({"host": 1, "port": 7}).renewed(["host", "new", "port", "newer"]) == Numbers(
        {"host": 1, "new": 8, "port": 7, "newer": 9}
    )


def test_the_number_of_a_field_that_is_gone_is_reserved_for_good() -> None:
    without = Numbers({"host": 1, "port": 7}).renewed(["host"])
    assert without == Numbers({"host": 1}, {7})
    assert without.renewed(["host", "port"]) == Numbers({"host": 1, "port": 8}, {7})


def test_a_field_that_no_dataclass_has_goes_and_leaves_its_number_reserved() -> None:
    odd = PROTO.replace("message Warm {\n", "message Warm {\n  string odd = 900;\n")
    made = proto_messages.with_messages(odd)
    assert made == PROTO.replace("  string torch_version = 1;\n}", "  string torch_version = 1;\n  reserved 900;\n}", 1)
    assert proto_messages.with_messages(made) == made


def test_a_field_that_is_missing_is_added() -> None:
    assert proto_messages.with_messages(PROTO.replace("  string torch_version = 4;\n", "", 1)) == PROTO


def test_a_message_of_no_dataclass_goes() -> None:
    assert proto_messages.with_messages(PROTO + "\nmessage Odd {\n  string odd = 1;\n}\n") == PROTO


def test_a_file_that_does_not_say_where_its_messages_begin_is_refused() -> None:
    with pytest.raises(ValueError, match="no line that says"):
        proto_messages.with_messages("syntax = proto3;\n")
