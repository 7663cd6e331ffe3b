from __future__ import annotations

import io
import sys
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
from support.host_state import carry, take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.records import encode


class Bar:
    """As progress bars of packages are."""

    def __init__(self, stream: Any) -> None:
        self.stream, self.lines = stream, [""]
        self.tell, self.longest = self.printer(stream, self)
        self.flush = stream.flush

    @staticmethod
    def printer(stream: Any, bar: Any) -> tuple[Callable[[str], str], Callable[[], int]]:
        longest, owner = 0, weakref.proxy(bar)
        seen = [0]

        def padded(text: str, fill: str = ".") -> str:
            return text.ljust(longest, fill)

        def tell(text: str) -> str:
            nonlocal longest
            line = padded(text)
            longest = max(longest, len(text))
            seen[0] += 1
            owner.lines.append(line)
            stream.flush()
            return line

        def told() -> int:
            return longest

        return tell, told


def carried(bar: Bar) -> Any:
    target: dict[str, Any] = {}
    carry({"bar": bar}, target)
    return target["bar"]


def test_functions_that_training_has_been_given_are_made_with_what_their_variables_mean() -> None:
    bar = Bar(sys.__stderr__)
    bar.tell("four")
    made = carried(bar)
    assert made is not bar
    assert made.longest() == 4
    assert made.tell("a") == "a..."
    assert made.lines == ["", "four", "a..."]
    assert bar.lines == ["", "four"]
    assert made.flush.__self__ is sys.__stderr__


def test_closures_go_on_sharing_their_variables() -> None:
    made = carried(Bar(sys.__stderr__))
    made.tell("seven l")
    assert made.longest() == 7


def test_what_set_up_has_made_is_kept() -> None:
    bar, own = Bar(sys.__stderr__), Bar(sys.__stderr__)
    tell = own.tell
    carry({"bar": bar}, {"bar": own})
    assert own.tell is tell


def test_a_function_with_what_cannot_be_written_is_not_made() -> None:
    made = carried(Bar(io.TextIOWrapper(io.BytesIO())))
    assert not hasattr(made, "tell")
    assert made.lines == [""]


def builder(number: int) -> Callable[[], int]:
    def build() -> int:
        return number

    return build


def counter() -> tuple[Callable[[], int], Callable[[], int]]:
    count = 0

    def add() -> int:
        nonlocal count
        count += 1
        return count

    def now() -> int:
        return count

    return add, now


def of_list() -> Callable[[], int]:
    seen = [1]

    def total() -> int:
        return sum(seen)

    return total


def in_turn() -> Iterator[Callable[[], int]]:
    number = 1

    def build() -> int:
        return number

    yield build
    number += 1
    yield build


def is_written_each_time(function: Any) -> bool:
    state = take({"held": {"function": function}})
    encode.encode(state)
    return bool(state.fleeting)


def test_functions_whose_variables_nobody_binds_anew_are_written_once() -> None:
    """Registries hold thousands of them."""
    assert not is_written_each_time(builder(3))


def test_others_are_written_each_time() -> None:
    functions = {"count": counter()[1], "list": of_list(), "generator": next(in_turn())}
    assert {name for name, function in functions.items() if is_written_each_time(function)} == {*functions}


def running(look: Callable[[Any], bool]) -> tuple[Callable[[], int], bool]:
    """It may bind its variable anew behind the look."""
    number = 3

    def build() -> int:
        return number

    return build, look(build)


def test_those_of_a_function_that_is_running_are_written_each_time() -> None:
    build, meanwhile = running(is_written_each_time)
    assert meanwhile
    assert not is_written_each_time(build)


class Trainer:
    def __init__(self) -> None:
        self.schedule: Any = None
        self.weight: Any = None

    def warm(self) -> None:
        self.schedule = lambda step: step
        self.weight = weighted(1)

    def train(self) -> None:
        self.schedule = lambda step: step * 10
        self.weight = weighted(7)


def weighted(factor: int) -> Callable[[int], int]:
    def weight(value: int) -> int:
        return value * factor

    return weight


def test_a_function_that_training_has_exchanged_takes_the_place_of_set_ups() -> None:
    lost, here, empty = Trainer(), Trainer(), Trainer()
    lost.train()
    here.warm()
    for target in (here, empty):
        carry({"trainer": lost}, {"trainer": target})
        assert (target.schedule(3), target.weight(3)) == (30, 21)


def test_a_function_that_set_up_has_made_likewise_is_kept() -> None:
    lost, here = Trainer(), Trainer()
    lost.warm()
    here.warm()
    own = here.schedule, here.weight
    carry({"trainer": lost}, {"trainer": here})
    assert (here.schedule, here.weight) == own


def test_a_function_with_variables_of_code_that_goes_on_is_refused_in_place_of_another_one() -> None:
    lost, here = Trainer(), Trainer()
    here.warm()
    factor = 2
    lost.schedule = lambda step: step * factor
    rebuild = carry({"trainer": lost}, {"trainer": here})
    with pytest.raises(StateMismatchError, match="function"):
        rebuild.check_complete()
    factor = 3


def test_a_lambda_at_the_top_of_a_script_takes_the_place_of_another_one() -> None:
    text = "rule = lambda step: step\nif trained: rule = lambda step: step * 5\nrun(globals())"
    code = compile(text, "script.py", "exec")
    module = ModuleType("script_at_its_top")
    other = {"rule": None}

    def run(names: dict[str, Any]) -> None:
        if names["trained"]:
            carry({"rule": names["rule"]}, other)
        else:
            other["rule"] = names["rule"]

    sys.modules[module.__name__] = module
    try:
        for trained in (False, True):
            vars(module).update(trained=trained, run=run)
            exec(code, vars(module))
    finally:
        del sys.modules[module.__name__]
    rule: Any = other["rule"]
    assert rule(2) == 10
