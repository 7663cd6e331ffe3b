from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any

from support.host_state import carry


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


def test_they_go_on_sharing_their_variables() -> None:
    made = carried(Bar(sys.__stderr__))
    made.tell("seven l")
    assert made.longest() == 7


def test_what_set_up_has_made_is_kept() -> None:
    bar, own = Bar(sys.__stderr__), Bar(sys.__stderr__)
    tell = own.tell
    carry({"bar": bar}, {"bar": own})
    assert own.tell is tell


def test_a_function_with_what_cannot_be_written_is_not_made() -> None:
    with open(__file__) as other:
        made = carried(Bar(other))
    assert not hasattr(made, "tell")
    assert made.lines == [""]
