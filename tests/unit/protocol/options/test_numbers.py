from __future__ import annotations

import math

import pytest

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.options.numbers import MEAN_OF, MINIMUM_STEPS, NumberWatch, Usual, parse_watch, parse_watches


@pytest.mark.parametrize(
    ("text", "watch"),
    [
        ("loss", NumberWatch("loss")),
        ("loss:action=stop", NumberWatch("loss", "stop")),
        ("grad-norm:action=retry,over=10", NumberWatch("grad-norm", "retry", 10.0)),
        ("replicas:every=50", NumberWatch("replicas", "alert", 0.0, 50)),
    ],
)
def test_a_watch_is_read_and_written(text: str, watch: NumberWatch) -> None:
    assert parse_watch(text) == watch
    assert parse_watch(str(watch)) == watch
    assert parse_watches(f"{text};") == (watch,)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("lost", "unknown number 'lost'; use one of loss, grad-norm, replicas"),
        ("loss:action=panic", "unknown action 'panic'; use one of alert, stop, retry"),
        ("loss:every=5", "'every=5' is not understood; loss takes action=, over=, each once"),
        ("replicas:over=5", "replicas takes action=, every="),
        ("loss:over=1", "above 1"),
        ("loss:over=inf", "above 1"),
        ("loss:over=x", "above 1"),
        ("replicas:every=0", "a number of steps from 1"),
        ("loss:action=stop,action=stop", "each once"),
    ],
)
def test_what_is_not_understood_says_what_would_be(text: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_watch(text)
    assert said in str(caught.value)


def usual_after(*values: float) -> Usual:
    usual = Usual()
    for value in values:
        usual.add(value)
    return usual


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_suspect_from_the_first_step_on_and_never_usual(value: float) -> None:
    assert usual_after().suspicion(value, 0.0) == f"is {value}"
    assert usual_after(1.0, value).mean == 1.0


def test_a_leap_is_suspect_once_the_usual_is_known() -> None:
    steps = [2.0] * MINIMUM_STEPS
    assert usual_after(*steps[1:]).suspicion(100.0, 10.0) == ""
    usual = usual_after(*steps)
    assert usual.suspicion(20.0, 10.0) == ""
    assert usual.suspicion(-20.1, 10.0) == "is -20.1, more than 10 times the mean of the last 8 steps, 2"
    assert usual.suspicion(1e9, 0.0) == ""


def test_the_mean_is_that_of_the_latest_steps() -> None:
    assert usual_after(*[100.0] * 5, *[-1.0] * MEAN_OF).mean == 1.0
