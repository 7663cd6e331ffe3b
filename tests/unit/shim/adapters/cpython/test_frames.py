"""Seen on Python 3.10 to 3.13."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from torchrelay.shim.adapters.cpython import frames


def test_locals_of_a_running_function_are_bound_from_outside() -> None:
    def inner(frame: FrameType) -> None:
        frames.set_locals(frame, {"count": 5, "born": "x", "unknown": 1})

    def outer() -> tuple[int, str]:
        count = 1
        inner(sys._getframe())
        if count < 0:
            born = "never"
        return count, born

    assert outer() == (5, "x")


def test_cells_that_closures_share_are_bound_too() -> None:
    def outer() -> tuple[int, Callable[[], int]]:
        shared = 1

        def read() -> int:
            return shared

        frames.set_locals(sys._getframe(), {"shared": 2})
        return shared, read

    value, read = outer()
    assert (value, read()) == (2, 2)


def test_names_of_a_module_are_its_globals() -> None:
    names: dict[str, Any] = {"frames": frames, "sys": sys, "step": 1}
    exec("frames.set_locals(sys._getframe(), {'step': 7, 'born': 8})\nseen = step, born", names)
    assert names["seen"] == (7, 8)


def test_other_locals_are_left_as_they_are() -> None:
    def outer() -> list[Any]:
        kept, changed = [1], 0
        frames.set_locals(sys._getframe(), {"changed": 1})
        kept.append(changed)
        return kept

    assert outer() == [1, 1]


def test_the_namespace_of_a_class_that_is_being_made_is_left_alone() -> None:
    class Seen(dict[str, Any]):
        emptied = False

        def clear(self) -> None:
            Seen.emptied = True
            super().clear()

    class Kind(type):
        @classmethod
        def __prepare__(mcs, name: str, bases: tuple[type, ...], /, **_: Any) -> Seen:
            return Seen()

    class Body(metaclass=Kind):
        value = 1
        frames.set_locals(sys._getframe(), {"unknown": 2})
        later = 3

    assert (Body.value, Body.later) == (1, 3)
    assert not Seen.emptied


class Batch:
    pass


def test_what_the_script_rebinds_is_free_at_once() -> None:
    batch = Batch()
    alive = weakref.ref(batch)
    assert frames.read_locals(sys._getframe())["batch"] is batch
    batch = Batch()
    assert alive() is None


def test_the_locals_that_the_script_keeps_stay_its_own() -> None:
    batch = Batch()
    kept = locals()
    assert frames.read_locals(sys._getframe())["batch"] is batch
    assert kept["batch"] is batch


def test_what_locals_has_given_to_the_script_is_not_filled_anew() -> None:
    """As a command's options are taken: `config = locals()`. It is the frame's own dictionary before Python 3.13."""

    def command(backend: str = "gloo", size: int = 1) -> tuple[list[Any], dict[str, Any], dict[str, Any]]:
        config = locals()
        later, size = 3, 2
        seen = []
        for name, value in config.items():
            read = frames.read_locals(sys._getframe())
            seen.append((name, value))
        return seen, dict(config), {**read, "later": later}

    seen, config, read = command()
    assert seen == [("backend", "gloo"), ("size", 1)]
    assert config == {"backend": "gloo", "size": 1}
    assert (read["backend"], read["size"], read["later"], read["config"] is not None) == ("gloo", 2, 3, True)


def test_variables_that_are_shared_gone_or_not_bound_yet_are_told_beside_locals_too() -> None:
    def outer() -> tuple[dict[str, Any], dict[str, Any]]:
        shared, gone = [1], 2
        given = locals()

        def inner() -> Any:
            return shared, unbound

        shared = [2]
        del gone
        found = frames.read_locals(sys._getframe(), ("shared", "gone", "unbound", "nowhere", "given"))
        assert given["shared"] == [1]
        unbound = 1
        del given, inner
        return found, {"unbound": unbound}

    found, _ = outer()
    assert [*found] == ["shared", "given"]
    assert found["shared"] == [2]


def test_what_is_bound_from_outside_is_not_put_into_what_locals_has_given() -> None:
    def outer() -> tuple[int, dict[str, Any]]:
        count = 1
        given = locals()
        frames.set_locals(sys._getframe(), {"count": 5})
        return count, dict(given)

    assert outer() == (5, {"count": 1})


def test_the_globals_of_a_module_stay_where_they_are() -> None:
    namespace: dict[str, Any] = {"read_locals": frames.read_locals, "getframe": sys._getframe}
    exec(compile("before = 1\nread = read_locals(getframe())", "<script>", "exec"), namespace)
    assert namespace["before"] == 1
    assert namespace["read"]["before"] == 1


def test_an_ended_frame_holds_nothing() -> None:
    frame = frames.ended_frame()
    assert frame.f_back is None
    assert dict(frame.f_locals) == {}
    assert frame is not frames.ended_frame()
