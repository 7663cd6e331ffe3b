"""Histories that grow with the run."""

from __future__ import annotations

from torchrelay.shim.capture.values.long_list import LongLists, decoded


def test_what_is_written_down_is_what_the_list_held() -> None:
    lists, history = LongLists(), [0.5 * n for n in range(3000)]
    content = lists.look(history)
    assert content is not None
    assert decoded(*content.encoded()) == history


def test_parts_are_pickled_once_while_the_list_only_grows() -> None:
    lists, history = LongLists(), [0.5 * n for n in range(2048)]
    first = lists.look(history)
    assert first is not None
    parts, _ = first.encoded()
    history.append(-1.0)
    second = lists.look(history)
    assert second is not None
    again, rest = second.encoded()
    assert all(a is b for a, b in zip(parts, again, strict=True))
    assert rest == [-1.0]


def test_an_older_content_stays_what_it_was_while_the_list_grows() -> None:
    lists, history = LongLists(), list(range(1000))
    before = lists.look(history)
    assert before is not None
    history.append(7)
    assert lists.look(history) is not None
    assert before.values() == list(range(1000))
    assert not before.is_in(history)


def test_a_value_that_is_changed_in_the_middle_is_seen_even_if_it_is_equal() -> None:
    lists, history = LongLists(), [0.0] * 1000
    before = lists.look(history)
    assert before is not None
    history[500] = -0.0
    assert not before.is_in(history)
    after = lists.look(history)
    assert after is not None
    assert str(decoded(*after.encoded())[500]) == "-0.0"
    assert str(before.values()[500]) == "0.0"


def test_a_list_that_was_cut_and_filled_again_is_looked_at_anew() -> None:
    lists, history = LongLists(), list(range(2000))
    assert lists.look(history) is not None
    del history[:]
    history += range(5000, 6500)
    content = lists.look(history)
    assert content is not None
    assert decoded(*content.encoded()) == list(range(5000, 6500))


def test_tuples_of_plain_values_are_plain_and_anything_else_is_not() -> None:
    lists = LongLists()
    assert lists.look([(n, float(n)) for n in range(600)]) is not None
    assert lists.look([[n] for n in range(600)]) is None
    history: list[object] = list(range(600))
    assert lists.look(history) is not None  # type: ignore[arg-type]  # any object is looked at
    history.append([])
    assert lists.look(history) is None  # type: ignore[arg-type]  # any object is looked at
