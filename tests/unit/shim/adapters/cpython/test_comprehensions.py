from __future__ import annotations

import sys
from types import FrameType

from torchrelay.shim.adapters.cpython.comprehensions import comprehension_around


def stands_in_one(outermost: FrameType) -> bool:
    return comprehension_around(sys._getframe(), outermost) is not None


def test_what_is_called_in_a_comprehension_stands_in_it() -> None:
    here = sys._getframe()
    assert [stands_in_one(here) for _ in range(2)] == [True, True]
    assert [[stands_in_one(here) for _ in range(1)] for _ in range(1)] == [[True]]
    assert [(stands_in_one(here), [0 for _ in range(2)])[0] for _ in range(2)] == [True, True]
    assert [stands_in_one(here) if n else not stands_in_one(here) for n in range(2) if stands_in_one(here)] == [
        False,
        True,
    ]
    assert {stands_in_one(here) for _ in range(2)} == {True}
    assert {n: stands_in_one(here) for n in range(1)} == {0: True}
    assert all(stands_in_one(here) for _ in range(2))


def test_what_is_called_before_or_behind_one_does_not() -> None:
    here = sys._getframe()
    found = [stands_in_one(here)] if stands_in_one(here) else []
    for _ in range(2):
        before = [0 for _ in range(2)]
        if stands_in_one(here):
            found.append(True)
        behind = [0 for _ in range(2)]
        assert before == behind
    assert found == []


def test_a_literal_that_is_long_or_has_a_star_is_no_comprehension() -> None:
    here = sys._getframe()
    found: list[bool] = []
    for n in range(2):
        found = [*found, stands_in_one(here)]
        assert {*found, stands_in_one(here)} == {False}
        # fmt: off
        logged = {"a": n, "b": n, "c": n, "d": n, "e": n, "f": n, "g": n, "h": n, "i": n, "j": n, "k": n, "l": n, "m": n,
                  "n": n, "o": n, "p": n, "q": n, "r": n, "s": n, "t": stands_in_one(here)}
        # fmt: on
        assert not logged["t"]
    assert found == [False, False]


def test_what_is_called_for_an_inner_loop_of_one_stands_in_it() -> None:
    here = sys._getframe()
    assert [found for _ in range(1) for found in [stands_in_one(here)] * 2] == [True, True]
    assert [found for _ in range(1) for found in list(map(stands_in_one, [here, here]))] == [True, True]


def test_a_comprehension_around_the_outermost_frame_does_not_count() -> None:
    def within() -> bool:
        return stands_in_one(sys._getframe())

    assert [within() for _ in range(2)] == [False, False]
