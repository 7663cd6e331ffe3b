"""Lists that no new process could put back are told before one has to, and those that set-up makes are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.host_state import carry, take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.protocol.names import BARS
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import encode
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.walks.rewalk import Rewalk
from torchrelay.shim.observe.lacking_elements import LackingElements


class Holder:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def written(space: dict[str, Any]) -> HostState:
    state = take(space)
    encode.encode(state)
    return state


def nothing_known() -> Any:
    """Of a type that pickles nowhere, and is no state."""
    return memoryview(b"a")


HELD: dict[str, Callable[[], Any]] = {
    "element": lambda: [1, nothing_known()],
    "in a tuple": lambda: [("a", (nothing_known(),))],
    "data": lambda: [[[n] for n in range(5_000)]],
}


@pytest.mark.parametrize("kind", ["element", "in a tuple", "data"])
def test_what_a_new_process_would_refuse_is_told_before(kind: str) -> None:
    space, lacking = {"holder": Holder(images=[])}, LackingElements()
    assert lacking.gaps(written(space), 0, "loop") == []
    space["holder"].images = HELD[kind]()
    (gap,) = lacking.gaps(written(space), 1, "loop")
    assert gap.effect == BARS
    assert gap.text.startswith("script.holder.images: training has put into this list what cannot be captured")
    with pytest.raises(StateMismatchError, match="an element has state that cannot be carried"):
        carry(space, {"holder": Holder(images=[])})
    space["holder"].images = []
    assert lacking.gaps(written(space), 2, "loop") == []


@pytest.mark.parametrize("kind", ["element", "in a tuple", "data"])
def test_what_set_up_makes_is_there_in_a_new_process(kind: str) -> None:
    space: dict[str, Any] = {"images": HELD[kind](), "step": 0}
    lacking = LackingElements()
    assert lacking.gaps(written(space), 0, "loop") == []
    space["step"] = 1
    assert lacking.gaps(written(space), 1, "loop") == []
    carry(space, target := {"images": HELD[kind](), "step": 0})
    assert target["step"] == 1
    space["images"].append(1)
    assert len(lacking.gaps(written(space), 2, "loop")) == 1


def test_what_a_rank_is_taken_over_with_is_there_in_the_next_process() -> None:
    lacking = LackingElements()
    assert lacking.gaps(written({"images": HELD["element"]()}), 7, "loop") == []


def test_a_walk_that_goes_on_from_an_earlier_one_tells_it_as_well() -> None:
    trees, lacking = ModuleTrees(), LackingElements()
    space: dict[str, Any] = {"images": [], "other": [0]}
    state = take(space, trees)
    encode.encode(state)
    for boundary, (change, found) in enumerate(
        [
            (lambda: space["images"].append(nothing_known()), 1),
            (lambda: space["other"].append(1), 1),
            (lambda: space["images"].clear(), 0),
        ]
    ):
        lacking.look(state, boundary, "loop")
        change()
        state = Rewalk(trees, state, at_gate=False).run([], {"script": space})
        encode.encode(state)
        assert len(lacking.gaps(state, boundary + 1, "loop")) == found


def test_what_the_script_makes_between_two_loops_is_there_in_a_new_process_and_what_steps_made_is_not() -> None:
    space: dict[str, Any] = {"images": [], "hooks": []}
    lacking = LackingElements()
    assert lacking.gaps(written(space), 0, "first") == []
    space["images"].append(nothing_known())
    assert len(lacking.gaps(written(space), 1, "first")) == 1
    space["hooks"].append(nothing_known())
    (gap,) = lacking.gaps(written(space), 2, "second")
    assert gap.text.startswith("script.images: ")
    assert len(lacking.gaps(written(space), 3, "second")) == 1
