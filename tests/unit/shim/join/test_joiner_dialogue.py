"""What a joiner refuses of a plan, since no comparison of contents stands for it."""

from __future__ import annotations

import pickle
import zlib
from types import SimpleNamespace
from typing import Any

import pytest

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.join.joiner_dialogue import Dialogue

W = "value.memory"


def quiet(*paths: str) -> bytes:
    return zlib.compress(pickle.dumps([*paths]))


def check(
    unproven: tuple[tuple[str, int], ...] = (), *, at_gate: tuple[tuple[str, int], ...] | None = None, **plan: Any
) -> None:
    """Check a plan whose donor was compared at boundary 4. `at_gate`: as in the gate's journal, if the joiner has one."""
    dialogue: Any = object.__new__(Dialogue)
    dialogue.gate = None if at_gate is None else SimpleNamespace(unproven=at_gate)
    journal: Any = SimpleNamespace(unproven=unproven, quiet=plan.pop("quiet", b""))
    made: Any = SimpleNamespace(**{"compared": 4, "kept": "", "directory": "", "late": {}, "carried": (), **plan})
    dialogue._check_proven(made, journal)


def refused(*args: Any, **more: Any) -> bool:
    try:
        check(*args, **more)
    except StateMismatchError as error:
        return W in str(error)
    return False


def test_a_first_write_counts_until_contents_are_compared_again() -> None:
    assert not refused()
    assert not refused(((W, 4),))
    assert refused(((W, 5),))
    assert not refused(((W, 5),), compared=5)


def test_what_the_step_has_written_before_its_gate_counts_too() -> None:
    assert refused(at_gate=((W, 5),))
    assert not refused(at_gate=((W, 4),))
    assert refused(((W, 3),), at_gate=((W, 5),))


@pytest.mark.parametrize("late", [{}, {W: 1}, {"value.other": 1}])
def test_what_the_donor_has_written_since_its_update_is_a_first_write_where_the_lost_rank_had_never_written_to_it(
    late: dict[str, int],
) -> None:
    assert refused(late=late, quiet=quiet(W)) is (W in late)
    assert not refused(late=late, quiet=quiet("value.third"))


def test_what_the_lost_rank_has_copied_does_not_come_from_the_donor() -> None:
    assert not refused(((W, 5),), carried=(W,))
    assert not refused(late={W: 1}, quiet=quiet(W), carried=(W,))
    assert refused(((W, 5),), carried=("value.other",))


@pytest.mark.parametrize("source", [{"kept": "/kept"}, {"directory": "/copies"}, {"compared": -1}])
def test_what_does_not_come_from_another_ranks_memory_need_not_have_been_compared(source: dict[str, Any]) -> None:
    assert not refused(((W, 5),), **source)
