from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from types import FunctionType
from typing import NamedTuple

import pytest

from torchrelay.shim.script.hidden_frames import hide_all, hide_this_frame


def ours(function: Callable[..., object]) -> Callable[..., object]:
    """The same function, as if it were one of the shim's."""
    assert isinstance(function, FunctionType)
    return FunctionType(function.__code__, {**function.__globals__, "__name__": "torchrelay.shim.somewhere"})


def names(error: BaseException) -> list[str]:
    return [entry.name for entry in traceback.extract_tb(error.__traceback__)]


def users() -> None:
    raise ValueError("the user's")


def between(call: Callable[[], object]) -> object:
    return call()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="up to 3.10 only hide_all can")
def test_a_frame_that_hides_itself_leaves_no_entry() -> None:
    def passing_on() -> None:
        try:
            users()
        except BaseException as e:
            hide_this_frame(e)
            raise

    with pytest.raises(ValueError, match="the user's") as caught:
        passing_on()
    assert names(caught.value) == ["test_a_frame_that_hides_itself_leaves_no_entry", "users"]


def test_all_entries_of_the_shim_are_taken_out_also_of_chained_exceptions() -> None:
    hiding = ours(between)

    def fails() -> None:
        try:
            hiding(users)
        except ValueError as e:
            raise KeyError from e

    error: BaseException | None = None
    try:
        hiding(lambda: hiding(fails))
    except KeyError as e:
        error = e
    assert error is not None
    assert error.__cause__ is not None
    assert names(error).count("between") == 2
    hide_all(error)
    test = "test_all_entries_of_the_shim_are_taken_out_also_of_chained_exceptions"
    assert names(error) == [test, "<lambda>", "fails"]
    assert names(error.__cause__) == ["fails", "users"]


def test_exceptions_that_are_chained_in_a_ring_come_to_an_end() -> None:
    one, two = ValueError(), KeyError()
    one.__context__, two.__cause__ = two, one
    hide_all(one)
    assert one.__traceback__ is None


class _Pair(NamedTuple):
    left: int
    right: int


def _interrupted(*_: object) -> None:
    raise KeyboardInterrupt


_NEW = _Pair.__new__
_BROKEN_OFF = FunctionType(_NEW.__code__, {**_NEW.__globals__, "_tuple_new": _interrupted})


def making() -> object:
    return _BROKEN_OFF(_Pair, 1, 2)


@pytest.mark.parametrize(("call", "made"), [(making, ["making", "<lambda>"]), (ours(making), [])])
def test_a_named_tuple_that_the_shim_makes_is_hidden_with_it(call: Callable[[], object], made: list[str]) -> None:
    """As where Ctrl-C comes while one is being made; one that the script makes is not hidden."""
    assert _NEW.__globals__["__name__"] == f"namedtuple_{_Pair.__name__}"
    with pytest.raises(KeyboardInterrupt) as caught:
        between(call)
    hide_all(caught.value)
    assert names(caught.value)[1:] == ["between", *made, "_interrupted"]
