"""What a rank that stays and one that joins do in the same order, and what the controller is told of it when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from torchrelay.protocol.messages import Plan, Rebuild
from torchrelay.shim.recovery import new_generation

ORDER = Rebuild(3, 7, "host", 4000, b"secret")


class Told:
    """An engine that notes what is done with it, in order."""

    def __init__(self, *, keeps: bool = False) -> None:
        self.done: list[Any] = []
        self.comms = SimpleNamespace(
            rebuild=lambda *_, joins: self.done.append(f"rebuild{' as a joiner' * joins}"),
            gate=lambda target: self.done.append(f"gate of {target}"),
            committed=lambda: self.done.append("committed"),
            now=SimpleNamespace(number=2),
        )
        self.link = SimpleNamespace(send=lambda report: self.done.append(type(report).__name__))
        self.recovery = SimpleNamespace(is_over=lambda generation: False)
        self.journal = SimpleNamespace(generation=2)
        self.updates = SimpleNamespace(gate=SimpleNamespace(expect_first_step=self.noting("first step expected")))
        self.replicas = SimpleNamespace(migrated=lambda target: self.done.append(f"replicas at {target}"))
        self.saves = SimpleNamespace(entered=lambda *given, **named: self.done.append((given, named)))
        self.keeper = SimpleNamespace(entered=lambda *given, **named: self.done.append((given, named)))
        if not keeps:
            self.keeper = None  # type: ignore[assignment]  # as in the engine

    def noting(self, what: str) -> Any:
        return lambda: self.done.append(what)


@pytest.mark.parametrize("joins", [False, True])
def test_the_controller_hears_of_each_part_when_that_is_done(joins: bool) -> None:
    engine: Any = Told()
    new_generation.rebuild(
        engine,
        ORDER,
        lambda phase: engine.done.append(f"fault in {phase}"),
        prepare=engine.noting("prepared"),
        connected=engine.noting("connected"),
        verified=engine.noting("compared"),
        joins=joins,
    )
    assert engine.done == [
        "fault in rebuild",
        "prepared",
        "rebuild as a joiner" if joins else "rebuild",
        "connected",
        "Rebuilt",
        "fault in verify",
        "gate of 7",
        "compared",
        "Verified",
    ]


def test_a_rank_that_cannot_prove_its_communicators_does_not_say_that_it_has() -> None:
    engine: Any = Told()

    def fail(target: int) -> None:
        raise RuntimeError("broken meanwhile")

    engine.comms.gate = fail
    with pytest.raises(RuntimeError, match="broken meanwhile"):
        new_generation.rebuild(engine, ORDER, lambda phase: None)
    assert engine.done == ["rebuild", "Rebuilt"]


def test_behind_a_commit_the_new_generation_counts() -> None:
    engine: Any = Told(keeps=True)
    new_generation.commit(engine, 3, Plan(3, 7, "rewind", offline=True), {"0": 2})
    assert (engine.comms.now.number, engine.journal.generation) == (3, 3)
    assert engine.done == [
        "committed",
        "first step expected",
        "replicas at 7",
        ((3, 7), {"from_copy": False}),
        ((3, {"0": 2}), {"has_communicators": False}),
    ]
