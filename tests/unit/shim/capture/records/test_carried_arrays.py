"""Arrays that training has made, in another process and back in this one."""

from __future__ import annotations

import pickle
from typing import Any

import numpy
import pytest
from support.host_state import carry, differences, no_saves, take

from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import encode, undo
from torchrelay.shim.capture.records.rebuild import StateRebuild
from torchrelay.shim.capture.state.filled_queues import FilledQueues
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.state.process_settings import ProcessSettings
from torchrelay.shim.capture.values.large_arrays import LargeArrays
from torchrelay.shim.capture.walks.rewalk import Rewalk


def trained() -> ModuleTrees:
    arrays = LargeArrays()
    arrays.settle()
    return ModuleTrees(arrays)


def in_training(namespace: dict[str, Any]) -> HostState:
    return take(namespace, trained())


def rebuilt(state: HostState, target: dict[str, Any]) -> None:
    rebuild = StateRebuild([], {"script": target}, no_saves, settings=ProcessSettings(), queues=FilledQueues())
    rebuild.resolve(encode.decode(pickle.loads(pickle.dumps(encode.encode(state)))))
    rebuild.fill()
    rebuild.check_complete()


def objects(shape: tuple[int, ...], *items: Any) -> numpy.ndarray:
    made = numpy.empty(len(items), dtype=object)
    for place, item in enumerate(items):
        made[place] = item
    return made.reshape(shape)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_large_array_of_training_is_made_again_in_its_order(order: Any) -> None:
    curves = numpy.asarray(numpy.random.default_rng(0).random((100, 200)), order=order)
    target: dict[str, Any] = {"results": {}}
    rebuilt(in_training({"results": {"precision": curves}}), target)
    made = target["results"]["precision"]
    assert made.tobytes("A") == curves.tobytes("A")
    assert (made.flags.f_contiguous, made.flags.writeable) == (order == "F", True)


def test_one_that_set_up_has_made_stays_what_it_is_in_another_process() -> None:
    target = {"data": numpy.zeros(20_000)}
    rebuilt(take({"data": numpy.ones(20_000)}), target)
    assert target["data"].sum() == 0


def test_a_large_array_that_is_written_to_is_seen_and_goes_back() -> None:
    trees, space = trained(), {"results": numpy.zeros((100, 200))}
    state = take(space, trees)
    encode.encode(state)
    same = Rewalk(trees, state, at_gate=False).run([], {"script": space})
    assert not same.renewed
    encode.encode(same)
    space["results"][3, 4] = 1.0
    now = Rewalk(trees, same, at_gate=False).run([], {"script": space})
    assert len(now.renewed) == 1
    undo.undo(state)
    assert space["results"].sum() == 0


def test_an_array_of_objects_is_made_again_with_what_it_holds() -> None:
    shared = {"score": 1.0}
    found = objects((2, 3), shared, None, [1, 2], numpy.arange(3.0), "a", (1, [2]))
    target: dict[str, Any] = {}
    carry({"images": [found], "first": shared}, target)
    made = target["images"][0]
    assert (type(made), made.dtype, made.shape) == (numpy.ndarray, numpy.dtype(object), (2, 3))
    assert made[0, 0] is target["first"]
    assert made[0, 0] == {"score": 1.0}
    assert [made[0, 1], made[0, 2], *made[1, 1:]] == [None, [1, 2], "a", (1, [2])]
    assert made[1, 0].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("items", [([1, 2],), (numpy.zeros(2),), ([],)])
def test_an_array_without_dimensions_holds_one_object(items: Any) -> None:
    target: dict[str, Any] = {}
    carry({"one": objects((), *items)}, target)
    assert target["one"].shape == ()
    assert type(target["one"].item()) is type(items[0])
    assert len(target["one"].item()) == len(items[0])


def test_an_array_of_objects_that_set_up_has_made_is_filled_in_place() -> None:
    own = objects((2,), [], [])
    inner, target = own[0], {"table": own}
    carry({"table": objects((2,), [1], None)}, target)
    assert target["table"] is own
    assert own[0] is inner
    assert own.tolist() == [[1], None]


def test_an_array_of_objects_goes_back() -> None:
    first: list[int] = [1]
    table = objects((1, 2), first, numpy.zeros(2))
    space = {"table": table}
    state = take(space)
    first.append(2)
    table[0, 1], space["table"] = [3], objects((1,), 0)
    undo.undo(state)
    assert space["table"] is table
    assert table[0, 0] is first
    assert (first, table[0, 1].tolist()) == ([1], [0.0, 0.0])


@pytest.mark.parametrize(
    ("other", "found"),
    [
        (objects((2,), [1], "a"), []),
        (objects((2,), [2], "a"), ["script.table[0][0] was 1 and is 2"]),
        (objects((2,), [1], "b"), ["script.table[1] was 'a' and is 'b'"]),
        (objects((1, 2), [1], "a"), ["script.table was of the form (2,) and is of the form (1, 2)"]),
    ],
)
def test_arrays_of_objects_are_compared_by_what_they_hold(other: Any, found: list[str]) -> None:
    then, now = (encode.decode(encode.encode(take({"table": table}))) for table in (objects((2,), [1], "a"), other))
    assert [str(difference) for difference in differences(then, now)] == found


@pytest.mark.parametrize("count", [10, 50_000])
def test_another_read_only_array_takes_the_place_of_the_one_that_set_up_has_made(count: int) -> None:
    tokens = numpy.frombuffer(numpy.arange(count, dtype=numpy.uint16).tobytes(), dtype=numpy.uint16)
    of_set_up = numpy.frombuffer(bytes(2 * count), dtype=numpy.uint16)
    target: dict[str, Any] = {"tokens": of_set_up, "also": of_set_up}
    rebuilt(in_training({"tokens": tokens, "also": tokens}), target)
    assert target["tokens"].tolist() == tokens.tolist()
    assert target["also"] is target["tokens"]
    assert not of_set_up.any()
