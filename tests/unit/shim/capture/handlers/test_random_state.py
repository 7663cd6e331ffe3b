"""Random generators of the script's own classes: what they draw next, and what they keep beside that."""

from __future__ import annotations

import random
from typing import Any

from support.host_state import carry, take

from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import encode
from torchrelay.shim.capture.records.undo import undo
from torchrelay.shim.capture.walks.rewalk import Rewalk


class Counting(random.Random):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.drawn: list[float] = []

    def random(self) -> float:
        self.drawn.append(super().random())
        return self.drawn[-1]


def test_attributes_of_a_generator_go_back_and_come_over_with_it() -> None:
    generator = Counting(3)
    generator.random()
    trees = ModuleTrees()
    namespace = {"generator": generator}
    state = take(namespace, trees)
    encode.encode(state)
    first = generator.random()
    later = Rewalk(trees, state, at_gate=False).run([], {"script": namespace})
    generator.random()
    undo(later)
    assert generator.drawn[1:] == [first]
    undo(state)
    assert len(generator.drawn) == 1
    assert generator.random() == first
    target: dict[str, Any] = {"generator": Counting(3)}
    carry({"generator": generator}, target)
    assert target["generator"].drawn == generator.drawn
    assert target["generator"].random() == generator.random()
