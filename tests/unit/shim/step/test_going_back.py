"""An iteration that is done again: what it had changed is as it was, and it is given the same items."""

from __future__ import annotations

import pytest
from support.loop_script import LOST, LoopScript


def test_a_broken_collective_takes_the_iteration_back_and_it_is_done_again(script: LoopScript) -> None:
    script.failures = 1
    names = script.run("""
        import random
        random.seed(0)
        class State:
            total = 0
        state, log, drawn = State(), [], []
        for epoch in range(2):
            for batch in range(3):
                drawn.append(random.random())
                log.append((epoch, batch))
                state.total += 1
                state.born = [batch]
                if (epoch, batch) == (1, 1):
                    fail()
                step()
    """)
    assert script.stood == ["body"]
    assert names["log"] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert names["state"].total == 6
    assert len(set(names["drawn"])) == 6
    expected = script_drawn()
    assert names["drawn"] == expected


def script_drawn() -> list[float]:
    import random

    source = random.Random(0)
    return [source.random() for _ in range(6)]


def test_a_failure_before_the_training_loop_is_known_pins_the_head_for_this_replay_only(script: LoopScript) -> None:
    script.failures = 1
    names = script.run("""
        log = []
        for epoch in range(2):
            log.append(epoch)
            for batch in range(2):
                fail()
                log.append((epoch, batch))
                step()
    """)
    assert names["log"] == [0, (0, 0), (0, 1), 1, (1, 0), (1, 1)]
    assert script.numbers_by_line()[5] == [1, 2, 3]


def test_an_inner_loop_that_is_entered_again_is_entered_for_the_first_time(script: LoopScript) -> None:
    """As in a process that joins, which has never failed there: it finds the loop by this number."""
    script.failures = 1
    entered: list[int] = []
    script.run(
        """
        for epoch in range(2):
            for batch in range(2):
                fail()
                note()
                step()
    """,
        note=lambda: entered.append(script.tracker.stack[-1].entry),
    )
    assert script.stood == ["body"]
    assert set(entered) == {1}


def test_locals_of_the_running_functions_are_put_back(script: LoopScript) -> None:
    script.failures = 1
    names = script.run("""
        result = []
        def train():
            best, count, history = None, 0, []
            for batch in range(4):
                count += 1
                history = history + [batch]
                best = count if best is None else max(best, count)
                if batch == 2:
                    fail()
                step()
            result.append((best, count, history))
        train()
    """)
    assert names["result"] == [(4, 4, [0, 1, 2, 3])]


def test_what_next_has_drawn_comes_again(script: LoopScript) -> None:
    script.failures = 1
    names = script.run("""
        it, seen = iter([1, 2, 3, 4, 5, 6]), []
        for batch in range(3):
            pair = next(it), next(it)
            if batch == 1:
                fail()
            seen.append(pair)
            step()
    """)
    assert names["seen"] == [(1, 2), (3, 4), (5, 6)]


@pytest.mark.parametrize(
    "around",
    ["enumerate(items)", "zip(range(9), items)", "((n, x) for n, x in enumerate(items))", "enumerate(map(str, items))"],
)
def test_a_step_of_several_iterations_is_done_again_with_the_same_items(script: LoopScript, around: str) -> None:
    script.failures = 1
    names = script.run(f"""
        items, seen = list("abcdef"), []
        for n, x in {around}:
            seen.append((n, x))
            if n == 3:
                fail()
            if n % 2:
                step()
    """)
    assert script.stood == ["body"]
    assert names["seen"] == list(enumerate("abcdef"))


def test_a_while_that_is_done_again_counts_its_heads_once(script: LoopScript) -> None:
    script.failures = 1
    names = script.run("""
        done, log = 0, []
        while done < 4:
            log.append(done)
            if done == 2:
                fail()
            step()
            done += 1
    """)
    assert names["log"] == [0, 1, 2, 3]
    assert script.boundaries == [(0, 3), (1, 3), (2, 3), (3, 3)]
    assert script.engine.commit is not None
    assert script.engine.commit.activation.heads == 4


def test_past_the_gate_nothing_is_taken_back(script: LoopScript) -> None:
    script.failures = 1
    names = script.run("""
        log = []
        for batch in range(2):
            step()
            log.append(batch)
            fail()
    """)
    assert script.stood == ["after"]
    assert names["log"] == [0, 1]


def test_an_exception_of_the_script_goes_through(script: LoopScript) -> None:
    with pytest.raises(RuntimeError, match="mine"):
        script.run("""
            for batch in range(2):
                step()
                raise RuntimeError("mine")
        """)
    assert script.stood == []


def test_a_communication_failure_that_the_script_raises_is_recognised_in_the_training_loop(script: LoopScript) -> None:
    names = script.run(
        """
        log = []
        for batch in range(2):
            log.append(batch)
            if batch == 1 and not told:
                told.append(1)
                raise RuntimeError(LOST)
            step()
        """,
        LOST=LOST,
        told=_Untouched(),
    )
    assert names["log"] == [0, 1]
    assert script.stood == ["body"]


class _Untouched:
    """State that no rewind reaches, for a failure that strikes once."""

    __slots__ = ()
    times = 0

    def __bool__(self) -> bool:
        return _Untouched.times > 0

    def append(self, _: int) -> None:
        _Untouched.times += 1


@pytest.mark.parametrize("failures", [0, 1])
@pytest.mark.parametrize("around", ["{}", "enumerate({})", "zip('a', {})"])
def test_what_a_loop_gives_out_is_the_object_itself_also_in_the_first_iteration(
    script: LoopScript, around: str, failures: int
) -> None:
    """A learning rate that is set on a copy of the optimizer's group is no learning rate."""
    script.failures = failures
    item = "group" if around == "{}" else "(_, group)"
    names = script.run(f"""
        import torch
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=9.0)
        rates = []
        for batch in range(3):
            for {item} in {around.format("optimizer.param_groups")}:
                group["lr"] = float(batch)
                group["times"] = group.get("times", 0) + 1
            fail()
            step()
            rates.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["times"]))
    """)
    assert names["rates"] == [(0.0, 1), (1.0, 2), (2.0, 3)]
    assert len(script.stood) == failures


def test_a_loop_in_inference_mode_has_no_boundaries_and_its_small_tensors_go_back(script: LoopScript) -> None:
    script.failures = 1
    names = script.run("""
        import torch
        best, seen = torch.zeros(2), []
        def evaluate():
            with torch.inference_mode():
                total = torch.zeros(2)
                for batch in range(3):
                    total += batch
            return total
        for epoch in range(2):
            for batch in range(2):
                seen.append((epoch, batch, best.tolist()))
                with torch.inference_mode():
                    best.add_(1) if best.is_inference() else None
                if (epoch, batch) == (1, 1):
                    fail()
                step()
            best = evaluate()
    """)
    assert script.stood == ["body"]
    assert names["seen"] == [(0, 0, [0, 0]), (0, 1, [0, 0]), (1, 0, [3, 3]), (1, 1, [4, 4])]
    assert 7 not in script.numbers_by_line()


def test_nobody_stands_at_the_head_of_a_loop_that_stands_in(
    script: LoopScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be of this rank alone, and others wait for it in the next step."""
    asked: list[tuple[int, int]] = []

    def wanted(boundary: int) -> bool:
        asked.append(script.boundaries[-1])
        return False

    monkeypatch.setattr(script.engine.recovery, "wanted_at_head", wanted)
    script.run("""
        class Schedule:
            def step(self): ...
        for epoch in range(2):
            for batch in range(3):
                step()
            for turn in range(2):
                Schedule().step()
    """)
    assert script.numbers_by_line()[7] == [3]
    assert [number for number, line in asked if line == 5] == [1, 2, 3, 4, 5]
    assert 7 not in {line for _, line in asked}
