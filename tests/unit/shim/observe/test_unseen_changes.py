from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from support.host_state import carry, take

from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import encode
from torchrelay.shim.capture.values import kinds
from torchrelay.shim.capture.values.large_arrays import LargeArrays
from torchrelay.shim.capture.walks.rewalk import Rewalk
from torchrelay.shim.capture.walks.walk import Walk
from torchrelay.shim.observe.unseen_changes import UnseenChanges


class Holder:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


class Emulator:
    """Stands for one in C."""

    def __reduce__(self) -> Any:
        raise TypeError("it does not pickle")


@pytest.fixture(autouse=True)
def _nothing_is_known_of_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kinds._known, Emulator, kinds.Kind.UNKNOWN)


def environment() -> dict[str, Any]:
    return {"envs": [Holder(steps=0, inner=Holder(emulator=Emulator()))], "epoch": 0}


def test_an_object_that_does_not_pickle_is_changed_once_what_leads_to_it_holds_other_values() -> None:
    space, unseen = environment(), UnseenChanges()
    unseen.look(take(space), 0, LargeArrays())
    space["epoch"] = 1  # no part of the way
    unseen.look(take(space), 1, LargeArrays())
    assert not unseen.found
    space["envs"][0].steps += 1
    unseen.look(take(space), 2, LargeArrays())
    assert [*unseen.found] == ["script.envs[0].inner.emulator (Emulator)"]


class Pieces(Holder):
    """Stands for a tokenizer, which keeps its model in C."""

    written = b"pieces"

    def __getstate__(self) -> Any:
        return {"model": bytes(bytearray(self.written)), "alpha": self.alpha}


class PickledByArguments(Holder):
    def __getstate__(self) -> Any:
        return {"arguments": self.arguments}


def test_what_a_class_writes_down_as_bytes_is_told_by_these_and_not_by_what_leads_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    space, unseen = {"data": Holder(read=0, tokenizer=Pieces(alpha=0.1, this=Emulator()))}, UnseenChanges()
    for boundary in range(3):
        unseen.look(take(space), boundary, LargeArrays())
        space["data"].read += 1
    assert not unseen.found
    monkeypatch.setattr(Pieces, "written", b"other pieces")
    unseen.look(take(space), 3, LargeArrays())
    assert [*unseen.found] == ["script.data.tokenizer.this (Emulator)"]


def test_one_that_is_written_down_is_asked_once_at_a_boundary(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def state(holder: Any) -> Any:
        asked.append(1)
        return {"model": bytes(3)}

    monkeypatch.setattr(Pieces, "__getstate__", state)
    space, unseen = {"data": Pieces(many=[Emulator() for _ in range(20)])}, UnseenChanges()
    found = take(space)
    asked.clear()
    unseen.look(found, 0, LargeArrays())
    assert len(asked) == 1


def test_what_counts_its_steps_is_changed_whatever_bytes_it_writes_down() -> None:
    space, unseen = {"env": Pieces(alpha=0.1, steps=0, this=Emulator())}, UnseenChanges()
    for boundary in range(2):
        unseen.look(take(space), boundary, LargeArrays())
        space["env"].steps += 1
    assert [*unseen.found] == ["script.env.this (Emulator)"]


def test_an_environment_that_is_pickled_by_its_arguments_tells_nothing_of_its_emulator() -> None:
    space, unseen = (
        {"env": Holder(steps=0, inner=PickledByArguments(arguments=b"rom", this=Emulator()))},
        UnseenChanges(),
    )
    for boundary in range(2):
        unseen.look(take(space), boundary, LargeArrays())
        space["env"].steps += 1
    assert [*unseen.found] == ["script.env.inner.this (Emulator)"]


class Trainer(Holder):
    def train(self, unseen: UnseenChanges, change: Callable[[], None]) -> None:
        for boundary in range(2):
            unseen.look(Walk(ModuleTrees()).run([sys._getframe()], {}), boundary, LargeArrays())
            self.steps += 1
            change()


class Tokenizer(Holder):
    """As those around C code are."""

    def __getstate__(self) -> Any:
        return {"words": 3}


def test_what_else_a_trainer_holds_does_not_lead_to_what_hangs_below_an_object_that_tells_of_itself() -> None:
    unseen, tokenizer = UnseenChanges(), Tokenizer(inner=Emulator(), words=3)
    trainer = Trainer(steps=0, data=Holder(tokenizer=tokenizer))
    trainer.train(unseen, lambda: None)
    assert not unseen.found
    trainer.train(unseen, lambda: tokenizer.__dict__.update(words=tokenizer.words + 1))
    assert [*unseen.found] == ["self.data.tokenizer.inner (Emulator)"]


@pytest.mark.parametrize("held", [Emulator(), Holder(inner=Emulator())])
def test_a_trainer_leads_to_all_else(held: Any) -> None:
    unseen = UnseenChanges()
    Trainer(steps=0, held=held).train(unseen, lambda: None)
    assert len(unseen.found) == 1


@pytest.mark.parametrize("namespace", [SimpleNamespace, argparse.Namespace])
def test_what_else_a_namespace_holds_does_not_lead_to_it_and_what_it_holds_does(namespace: type) -> None:
    space, unseen = {"options": namespace(env=Holder(steps=0, emulator=Emulator()), epoch=0)}, UnseenChanges()
    unseen.look(take(space), 0, LargeArrays())
    space["options"].epoch = 1
    unseen.look(take(space), 1, LargeArrays())
    assert not unseen.found
    space["options"].env.steps += 1
    unseen.look(take(space), 2, LargeArrays())
    assert [*unseen.found] == ["script.options.env.emulator (Emulator)"]


def test_a_walk_that_goes_on_from_an_earlier_one_tells_it_as_well() -> None:
    space, unseen, trees = environment(), UnseenChanges(), ModuleTrees()
    base = take(space, trees)
    encode.encode(base)
    unseen.look(base, 0, LargeArrays())
    space["envs"][0].steps += 1
    unseen.look(Rewalk(trees, base, at_gate=False).run([], {"script": space}), 1, LargeArrays())
    assert unseen.found


def test_an_array_that_training_writes_to_is_told_and_one_that_is_read_is_not() -> None:
    space = {"data": numpy.ones(20_000), "buffer": numpy.zeros((2, 20_000))[:, ::2], "place": 0}
    unseen = UnseenChanges()
    for step in range(3):
        unseen.look(take(space), step, LargeArrays())
        space["place"] = step
    assert not unseen.found
    space["buffer"][1, 3] = 1.0
    unseen.look(take(space), 3, LargeArrays())
    assert [*unseen.found] == ["script.buffer (an array larger than 64 KiB)"]


def test_a_digest_of_the_standard_library_is_changed_once_it_is_another_one() -> None:
    space = {"log": Holder(lines=0, digest=hashlib.sha256())}
    unseen = UnseenChanges()
    for step in range(3):
        state = take(space)
        assert len(state.unknown) == 1
        unseen.look(state, step, LargeArrays())
        space["log"].lines += 1
    assert not unseen.found
    space["log"].digest.update(b"batch")
    unseen.look(take(space), 3, LargeArrays())
    assert [*unseen.found.values()] == ["training goes on with it"]


@pytest.mark.parametrize("reads", [True, False])
def test_a_program_that_the_script_has_started_may_be_read_from(reads: bool) -> None:
    piped = {"stdout": subprocess.PIPE} if reads else {"stdout": subprocess.DEVNULL}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, **piped) as program:
        unseen = UnseenChanges()
        unseen.look(take({"program": program}), 0, LargeArrays())
        assert bool(unseen.found) is reads
        assert program.stdin is not None
        program.stdin.close()


def test_after_the_first_boundaries_arrays_are_looked_at_at_powers_of_two() -> None:
    space, unseen = {"buffer": numpy.zeros(20_000)}, UnseenChanges()
    unseen.look(take(space), 8, LargeArrays())
    space["buffer"][0] = 1.0
    unseen.look(take(space), 15, LargeArrays())
    assert not unseen.found
    unseen.look(take(space), 16, LargeArrays())
    assert unseen.found


def read_only(value: int) -> numpy.ndarray:
    array = numpy.full((100, 1000), value)[:50]  # a part: it is not carried
    array.flags.writeable = False
    return array


def test_another_read_only_array_in_the_place_of_one_is_a_change_and_the_same_one_is_none() -> None:
    first, second = read_only(1), read_only(2)
    space, unseen, trees = {"held": [first, second], "tokens": first}, UnseenChanges(), ModuleTrees()
    unseen.look(take(space, trees), 0, LargeArrays())
    trees.arrays.settle()
    unseen.look(take(space, trees), 99, LargeArrays())  # at a boundary where contents are not looked at
    assert not unseen.found
    space["tokens"] = second
    unseen.look(take(space, trees), 100, LargeArrays())
    assert [(name.partition(" ")[0], why) for name, why in unseen.found.items()] == [
        ("script.tokens", "training has put another one in its place")
    ]


def test_a_read_only_array_that_set_up_has_not_made_is_a_change_at_once() -> None:
    space: dict[str, Any] = {"tokens": None}
    unseen, trees = UnseenChanges(), ModuleTrees()
    unseen.look(take(space, trees), 0, LargeArrays())
    trees.arrays.settle()
    space["tokens"] = read_only(1)
    unseen.look(take(space, trees), 99, LargeArrays())
    assert [*unseen.found.values()] == ["training has put it there"]


def test_an_array_that_training_writes_to_is_carried_from_the_next_boundary_on() -> None:
    space, unseen, trees = {"buffer": numpy.zeros(20_000)}, UnseenChanges(), ModuleTrees()
    unseen.look(take(space, trees), 0, trees.arrays)
    trees.arrays.settle()
    space["buffer"][3] = 1.0
    state = take(space, trees)
    unseen.look(state, 1, trees.arrays)
    assert [*unseen.found.values()] == ["training writes to it"], "this journal does not have it yet"
    assert trees.arrays.has_more
    state = take(space, trees)
    assert not state.unknown
    carried = {"buffer": numpy.zeros(20_000)}
    there = carried["buffer"]
    carry(space, carried, trees)
    assert carried["buffer"] is there
    assert there[3] == 1.0


@pytest.mark.parametrize("array", [numpy.zeros(2 << 20), numpy.zeros((3, 20_000))[:2]])
def test_what_is_too_large_or_a_part_of_another_one_is_told_and_not_carried(array: numpy.ndarray) -> None:
    space, unseen, trees = {"buffer": array}, UnseenChanges(), ModuleTrees()
    unseen.look(take(space, trees), 0, trees.arrays)
    array[..., 3] = 1.0
    unseen.look(take(space, trees), 1, trees.arrays)
    assert [*unseen.found.values()] == ["training writes to it"]
    assert not trees.arrays.has_more
    assert len(take(space, trees).unknown) == 1
