from __future__ import annotations

import typing

import pytest

from torchrelay.protocol import messages
from torchrelay.protocol.errors import FatalError
from torchrelay.protocol.exhaustive import assert_never


def test_what_nothing_handles_is_named() -> None:
    with pytest.raises(FatalError, match="nothing here handles 'another'"):
        assert_never("another")  # type: ignore[arg-type]  # as a fault of ours would


def test_a_process_is_told_nothing_under_two_heads_and_all_that_follows_an_engine_is_an_order() -> None:
    spare, migration = set(typing.get_args(messages.SpareOrder)), set(typing.get_args(messages.MigrationOrder))
    assert not spare & migration
    assert spare | migration < set(typing.get_args(messages.ShimOrder))
    assert set(typing.get_args(messages.SwitchOrder)) < migration
