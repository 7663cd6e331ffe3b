"""The heads of a loop that trains in a later iteration than its first: a joiner is led by the one of that iteration, or by none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from support.loop_script import LoopScript

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.comm.finished import FinishedCollective
from torchrelay.shim.join import restore_at_boundary
from torchrelay.shim.step import training_loop

ROLLOUTS = """
    class Environment:
        count = 0
        def step(self):
            self.count += 1
        observe = step
    def update():
        for batch in range(3):
            step()
    environment = Environment()
    for turn in range(6):
        environment.step()
        reduce()
        if turn == 1:
            fail()
        if turn % 3 == 2:
            update()
"""
OUTER = 11
"""The line of the loop around."""


class Seen:
    """`heads`: those of loops around that were written, by line and number; `ways`: what bars the way in, by boundary."""

    def __init__(self, script: LoopScript, monkeypatch: pytest.MonkeyPatch) -> None:
        engine, self.heads, self.ways = script.engine, [], {}  # type: ignore[var-annotated]
        self.prologues: dict[int, list[int]] = {}
        head = engine.writer.head

        def written(activation: Any) -> bytes:
            self.heads.append((int(activation.site.split(":")[-2]), activation.heads))
            return head(activation)

        def at_boundary(commit: Any) -> None:
            stack = engine.tracker.stack
            self.ways[commit.boundary] = engine.writer.no_way_in
            self.prologues[commit.boundary] = [len(engine.writer._link(d, stack).prologue) for d in range(len(stack))]

        monkeypatch.setattr(engine.writer, "head", written)
        monkeypatch.setattr(engine.reporter, "at_boundary", at_boundary)
        self.entry = FinishedCollective("all_reduce", "0", None)
        self._records = engine.records

    def reduce(self) -> None:
        self._records.add(self.entry, after_gate=False)


@pytest.fixture
def seen(script: LoopScript, monkeypatch: pytest.MonkeyPatch) -> Seen:
    return Seen(script, monkeypatch)


def test_each_head_is_written_of_a_loop_that_seems_to_train(script: LoopScript, seen: Seen) -> None:
    script.run(ROLLOUTS, reduce=seen.reduce)
    assert [heads for line, heads in seen.heads if line == OUTER] == [2, 3, 4, 5, 6]
    assert set(seen.ways) == {0, 1, 2, 3, 4, 5}
    assert set(seen.ways.values()) == {()}


def test_collectives_of_earlier_iterations_are_not_told_of_again(script: LoopScript, seen: Seen) -> None:
    script.run(ROLLOUTS, reduce=seen.reduce)
    told = {boundary: told for boundary, told in seen.prologues.items() if boundary}
    assert told == {number: [0, 1] for number in range(1, 6)}


def test_a_way_in_is_barred_where_the_head_of_that_iteration_was_not_written(script: LoopScript, seen: Seen) -> None:
    script.run(ROLLOUTS.replace("environment.step()", "environment.observe()"), reduce=seen.reduce)
    barred = [boundary for boundary, why in seen.ways.items() if why]
    assert barred == [1, 2], "the second rollout begins at a head of a loop that is known to be around training"
    assert "which had gone round before it was seen to train" in seen.ways[1][0]


def test_so_many_heads_are_written_and_no_more(script: LoopScript, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training_loop, "_MOST_LATER_HEADS", 1)
    script.run(ROLLOUTS, reduce=seen.reduce)
    assert [heads for line, heads in seen.heads if line == OUTER] == [2, 4, 5, 6]
    assert [boundary for boundary, why in seen.ways.items() if why] == [1, 2], "and never with the head before"


def test_who_goes_back_to_the_first_head_has_that_one_again(
    script: LoopScript, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    script.failures = 1
    there: list[tuple[int, bool]] = []

    def gone_back(failure: Exception | None) -> None:
        commit = script.engine.commit
        assert failure is None
        assert commit is not None
        there.append((commit.activation.heads, commit.activation.head == commit.head != b""))

    monkeypatch.setattr(script.engine.recovery, "gone_back", gone_back)
    script.run(ROLLOUTS, reduce=seen.reduce)
    assert there == [(1, True)]
    assert [heads for line, heads in seen.heads if line == OUTER] == [2, 2, 3, 4, 5, 6]
    assert set(seen.ways.values()) == {()}


def test_who_has_come_to_another_iteration_does_not_take_the_state_of_the_lost_rank() -> None:
    def loops(*heads: int) -> list[Any]:
        return [SimpleNamespace(site=f"script.py:{n}:0", entry=1, heads=count) for n, count in enumerate(heads)]

    engine: Any = SimpleNamespace(tracker=SimpleNamespace(stack=loops(32, 2)))
    restore_at_boundary._check_loops(engine, loops(32, 2))
    with pytest.raises(
        StateMismatchError, match=r"in iteration 32 of the loop at script\.py:0:0, and the lost rank in"
    ):
        restore_at_boundary._check_loops(engine, loops(63, 2))
