"""Arrays that look into the memory of another one follow it into another process, and back."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
from support.host_state import carry, differences, take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.records import encode, undo
from torchrelay.shim.capture.values.array_windows import Window, is_window, window_of
from torchrelay.shim.capture.values.kinds import Kind


def parts_of(rows: Any, order: list[int]) -> list[Any]:
    return [(rows[start : start + 4], start) for start in order]


def set_up() -> dict[str, Any]:
    rows = numpy.arange(12)
    return {"rows": rows, "parts": parts_of(rows, [0, 4, 8])}


def trained() -> dict[str, Any]:
    made = set_up()
    numpy.random.default_rng(3).shuffle(made["rows"])
    made["parts"] = parts_of(made["rows"], [8, 0, 4])
    return made


def test_parts_of_an_array_that_was_shuffled_in_place_are_parts_of_it_in_a_new_process_too() -> None:
    lost, joiner = trained(), set_up()
    rows = joiner["rows"]
    carry(lost, joiner)
    assert joiner["rows"] is rows
    assert rows.tolist() == lost["rows"].tolist()
    assert [(part.tolist(), at) for part, at in joiner["parts"]] == [(part.tolist(), at) for part, at in lost["parts"]]
    rows[:] = 7
    assert {value for part, _ in joiner["parts"] for value in part.tolist()} == {7}


def test_so_they_are_without_another_name_for_that_array_and_in_a_process_that_has_none() -> None:
    joiner: dict[str, Any] = {}
    carry({"parts": trained()["parts"]}, joiner)
    (first, _), (second, _), _ = joiner["parts"]
    assert first.base is second.base
    assert [part.tolist() for part, _ in joiner["parts"]] == [part.tolist() for part, _ in trained()["parts"]]


@pytest.mark.parametrize(
    "look",
    [
        lambda array: array[::-2],
        lambda array: array.reshape(3, 4).T[1:],
        lambda array: array.view("u1")[3:9],
        lambda array: numpy.broadcast_to(array[2:3], (4,)),
    ],
)
def test_any_part_of_an_array_can_be_looked_at(look: Any) -> None:
    lost: dict[str, Any] = {"array": numpy.arange(12)}
    lost["part"] = look(lost["array"])
    joiner: dict[str, Any] = {"array": numpy.zeros(12, int), "part": None}
    carry(lost, joiner)
    assert numpy.array_equal(joiner["part"], lost["part"])
    assert numpy.shares_memory(joiner["part"], joiner["array"])
    assert joiner["part"].flags.writeable is lost["part"].flags.writeable


def test_a_part_that_is_there_stays_the_object_that_it_is() -> None:
    joiner = set_up()
    first = joiner["parts"][0][0]
    carry(set_up(), joiner)
    assert joiner["parts"][0][0] is first


def test_what_has_memory_of_its_own_is_not_written_into_memory_of_others() -> None:
    rows = numpy.arange(12)
    lost = {"rows": rows, "first": rows[8:].copy()}
    joiner = set_up()
    joiner["first"] = joiner["rows"][:4]
    carry(lost, joiner)
    assert joiner["rows"].tolist() == rows.tolist()
    assert joiner["first"].tolist() == [8, 9, 10, 11]


def test_a_rank_that_goes_back_has_them_as_they_were() -> None:
    namespace = trained()
    state = take(namespace)
    assert [node.kind for node in state.nodes].count(Kind.NDARRAY) == 1
    then = [part.tolist() for part, _ in namespace["parts"]]
    namespace["rows"].sort()
    undo.undo(state)
    assert [part.tolist() for part, _ in namespace["parts"]] == then


def test_another_part_is_told_apart_and_so_is_another_element() -> None:
    written = encode.decode(encode.encode(take(trained())))
    assert differences(written, encode.decode(encode.encode(take(trained())))) == []
    moved = trained()
    moved["parts"] = parts_of(moved["rows"], [8, 4, 0])
    told = [str(found) for found in differences(written, encode.decode(encode.encode(take(moved))))]
    assert any(
        "was a part [4] of an array, at byte 0 of it and is a part [4] of an array, at byte 32 of it" in text
        for text in told
    ), told
    other = trained()
    was, other["rows"][5] = other["rows"][5], 99
    told = [str(found) for found in differences(written, encode.decode(encode.encode(take(other))))]
    assert told == [
        f"script.rows was an array [12] of int64 with {was} at [5] and is an array [12] of int64 with 99 at [5]"
    ]
    longer = {**trained(), "rows": numpy.arange(13.0)}
    longer["parts"] = parts_of(longer["rows"], [8, 0, 4])
    told = [str(found) for found in differences(written, encode.decode(encode.encode(take(longer))))]
    assert told[0] == "script.rows was an array [12] of int64 and is an array [13] of float64"


def test_memory_that_is_ordered_otherwise_is_refused() -> None:
    window = window_of(numpy.arange(12)[2:])
    with pytest.raises(StateMismatchError, match="ordered otherwise"):
        window.over(numpy.zeros((3, 4), order="F"), None)
    with pytest.raises(StateMismatchError, match="no place in the memory"):
        Window(80, (4,), (8,), "<i8", True).over(numpy.arange(12), None)


def test_parts_of_large_arrays_and_of_objects_are_no_windows() -> None:
    assert not is_window(numpy.arange(10_000)[:4])
    assert not is_window(numpy.array([[], ()], dtype=object)[:1])
    assert not is_window(numpy.arange(4)[:0])
    assert not is_window(numpy.frombuffer(bytearray(8), "u1"))
