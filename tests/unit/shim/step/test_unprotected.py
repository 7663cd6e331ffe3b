"""Why a script has failed, where it caught an exception of ours and exited."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.step.unprotected import Unprotected

OURS = StateMismatchError("training has made what cannot be made again")


@pytest.fixture
def engine() -> SimpleNamespace:
    return SimpleNamespace(step=SimpleNamespace(gates_passed=3))


@pytest.fixture
def unprotected(engine: SimpleNamespace) -> Unprotected:
    return Unprotected(engine)  # type: ignore[arg-type]  # as much of it as is asked


def test_an_exit_is_told_by_the_exception_of_ours_that_led_to_it(unprotected: Unprotected) -> None:
    unprotected.raises(OURS)
    assert unprotected.behind(SystemExit(1)) is OURS


def test_an_exit_in_a_later_step_is_the_scripts(unprotected: Unprotected, engine: SimpleNamespace) -> None:
    unprotected.raises(OURS)
    engine.step.gates_passed = 4
    left = SystemExit(1)
    assert unprotected.behind(left) is left


def test_a_failure_that_says_what_it_is_is_told_as_it_is(unprotected: Unprotected) -> None:
    unprotected.raises(OURS)
    failure = ValueError("of the script")
    assert unprotected.behind(failure) is failure
