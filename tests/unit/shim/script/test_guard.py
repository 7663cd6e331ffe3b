"""Exceptions of the shim stay with the shim; those of the script, and of a migration, come through."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from support.loop_script import LoopScript

from torchrelay.shim.script.guard import INJECTED, Guard
from torchrelay.shim.script.rewind import Rewind


class Engine:
    def __init__(self, closed: bool = False) -> None:
        self.closed = closed
        self.gave_up: list[str] = []
        self.raised: list[Exception] = []

    def fails_closed(self, error: Exception) -> bool:
        return self.closed

    def raises(self, error: Exception) -> None:
        self.raised.append(error)

    def give_up(self, error: Exception) -> None:
        self.gave_up.append(str(error))


def doubled(number: int) -> int:
    return 2 * number


def fails(*_: Any) -> Any:
    raise ValueError("ours")


def test_what_fails_before_the_plain_call_is_followed_by_it() -> None:
    engine = Engine()
    assert Guard(lambda: engine).call(lambda plain, number: fails(), doubled, 4) == 8
    assert engine.gave_up == ["ours"]


def test_what_fails_behind_the_plain_call_does_not_repeat_it() -> None:
    engine, calls = Engine(), []

    def ours(plain: Callable[[int], int], number: int) -> Any:
        plain(number)
        return fails()

    def counted(number: int) -> int:
        calls.append(number)
        return doubled(number)

    assert Guard(lambda: engine).call(ours, counted, 4) == 8
    assert calls == [4]


def test_the_scripts_own_error_comes_through_also_where_ours_comes_up_over_it() -> None:
    engine = Engine()

    def ours(plain: Callable[[], Any]) -> Any:
        try:
            return plain()
        except KeyError:
            return fails()

    def broken() -> Any:
        raise KeyError("the script's")

    with pytest.raises(KeyError, match="the script's"):
        Guard(lambda: engine).call(lambda plain: plain(), broken)
    assert engine.gave_up == []
    with pytest.raises(KeyError, match="the script's"):
        Guard(lambda: engine).call(ours, broken)
    assert engine.gave_up == ["ours"]


def test_in_a_migration_and_from_an_injected_fault_errors_come_through() -> None:
    with pytest.raises(ValueError, match="ours"):
        Guard(lambda: Engine(closed=True)).call(fails, doubled, 4)

    def injected(*_: Any) -> Any:
        raise RuntimeError(f"{INJECTED}raise")

    with pytest.raises(RuntimeError, match="injected"):
        Guard(lambda: Engine()).call(injected, doubled, 4)


def test_a_rewind_is_no_error() -> None:
    def rewinds(*_: Any) -> Any:
        raise Rewind(None)  # type: ignore[arg-type]  # nobody looks at it

    with pytest.raises(Rewind):
        Guard(lambda: Engine()).call(rewinds, doubled, 4)


def test_without_an_engine_the_process_is_not_protected() -> None:
    reasons: list[str] = []
    guard = Guard(lambda: None, reasons.append)
    assert guard.call(fails, doubled, 4) == 8
    assert reasons == ["ValueError: ours"]


def test_an_error_that_cannot_say_what_it_is_stays_with_us_too() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("mute")

    def ours(*_: Any) -> Any:
        raise Mute

    reasons: list[str] = []
    assert Guard(lambda: None, reasons.append).call(ours, doubled, 4) == 8
    assert reasons == ["Mute: (it does not say what)"]


def test_the_scripts_error_keeps_nothing_alive_and_shows_no_frame_of_ours() -> None:
    class Big:
        pass

    gone: list[weakref.ref[Big]] = []

    def broken() -> Any:
        big = Big()
        gone.append(weakref.ref(big))
        raise KeyError(big)

    gc.disable()
    try:
        try:
            Guard(lambda: Engine()).entry(broken, lambda plain: plain())()
        except KeyError as error:
            shown = "".join(traceback.format_exception(error))
        assert "shim/script/guard.py" not in shown.replace("tests/unit/shim", "")
        assert gone[0]() is None
    finally:
        gc.enable()


def test_a_rank_that_gave_up_between_two_updates_still_has_one_gate_an_iteration(
    script: LoopScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates: list[tuple[int, str]] = []
    monkeypatch.setattr(script.engine.comms, "gate", lambda number: gates.append((number, seen[-1])))
    seen: list[str] = ["set-up"]
    script.run(
        """
        for iteration in range(5):
            note(f"{iteration} first")
            step()
            note(f"{iteration} second")
            if iteration != 4:
                step()
            if iteration == 2:
                give_up()
    """,
        note=lambda name: (seen.append(name), script.engine.step.computed_gradients()),
        give_up=lambda: script.engine.give_up(ValueError("broken")),
    )
    assert [where for number, where in gates if number == -1] == ["3 second"]
    script.engine.updates.gate.at_head_unprotected()
    assert gates[-1] == (-1, "4 second"), "the last iteration owed one, which comes at the next head"


def test_a_rank_that_gave_up_before_it_knew_of_two_updates_learns_of_them_as_the_others_do(
    script: LoopScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates: list[str] = []
    seen: list[str] = []
    monkeypatch.setattr(script.engine.comms, "gate", lambda number: gates.append(seen[-1]))
    monkeypatch.setattr(script.engine.updates.early, "learn", fails)
    script.run(
        """
        for iteration in range(3):
            note(f"{iteration} first")
            step()
            note(f"{iteration} second")
            step()
    """,
        note=lambda name: (seen.append(name), script.engine.step.computed_gradients()),
    )
    assert gates == ["0 first", "1 second", "2 second"]


@pytest.mark.parametrize("where", ["_prune", "around_step", "head"])
def test_loops_go_on_where_tracking_them_fails(where: str, script: LoopScript, monkeypatch: pytest.MonkeyPatch) -> None:
    if where != "head":
        monkeypatch.setattr(script.tracker, where, fails)
    else:
        monkeypatch.setattr(script.engine, "_reach", fails)
    names = script.run("""
        log = []
        for epoch in range(2):
            for batch in range(2):
                log.append((epoch, batch))
        count = 0
        while count < 3:
            count += 1
    """)
    assert names["log"] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert names["count"] == 3
