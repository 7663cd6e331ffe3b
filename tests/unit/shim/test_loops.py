from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.loop_script import LOST, LoopScript

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.capture import rng
from torchrelay.shim.comms import Generation
from torchrelay.shim.loops import Activation, LoopTracker, plain_range


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> LoopScript:
    return LoopScript(monkeypatch, tmp_path)


def test_until_a_step_was_seen_the_outermost_loop_stands_in_and_then_the_innermost_around_the_step(
    script: LoopScript,
) -> None:
    script.run("""
        for epoch in range(2):
            for batch in range(3):
                step()
    """)
    assert script.boundaries == [(0, 2), (1, 3), (2, 3), (3, 3), (4, 3), (5, 3)]


def test_a_loop_over_micro_batches_that_ends_with_the_step_is_not_the_training_loop(script: LoopScript) -> None:
    script.run("""
        for batch in range(4):
            for micro in range(2):
                if micro == 1:
                    step()
    """)
    assert script.numbers_by_line() == {2: [0, 1, 2, 3]}


def test_a_loop_of_micro_batches_that_comes_round_only_counts_after_a_step(script: LoopScript) -> None:
    script.run("""
        count = 0
        while count < 8:
            count += 1
            if count % 2 == 0:
                step()
    """)
    assert script.boundaries == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_epochs_of_one_step_make_the_epochs_the_training_loop(script: LoopScript) -> None:
    script.run("""
        for epoch in range(3):
            for batch in range(1):
                step()
    """)
    assert script.numbers_by_line()[2] == [0, 1, 2]


def test_an_evaluation_that_comes_round_after_a_step_is_not_the_training_loop(script: LoopScript) -> None:
    script.run("""
        for epoch in range(3):
            for batch in range(1):
                step()
            for sample in range(3):
                str(sample).strip()
    """)
    assert script.boundaries == [(0, 2), (1, 2), (2, 2)]


def test_the_last_step_of_an_epoch_is_followed_by_the_head_of_the_next(script: LoopScript) -> None:
    script.run("""
        for epoch in range(2):
            for batch in range(2):
                step()
            for sample in range(3):
                str(sample).strip()
    """)
    assert script.boundaries == [(0, 2), (1, 3), (2, 3), (3, 3)]


def test_loops_around_and_before_the_training_loop_have_their_heads_and_no_boundaries(script: LoopScript) -> None:
    script.run("""
        for part in range(3):
            str(part).strip()
        for run in range(2):
            for epoch in range(2):
                for batch in range(2):
                    step()
    """)
    lines = script.numbers_by_line()
    assert lines[2] == [0]
    assert lines[4] == [0]
    assert 5 not in lines
    assert lines[6] == [1, 2, 3, 4, 5, 6, 7]


def test_break_continue_return_and_else_keep_their_meaning(script: LoopScript) -> None:
    names = script.run("""
        log = []
        def train():
            for batch in range(9):
                if batch == 1:
                    continue
                step()
                if batch == 4:
                    break
            else:
                log.append("never")
            for other in range(3):
                log.append(other)
                return batch
        log.append(train())
        for last in range(2):
            log.append(str(last))
        else:
            log.append("else")
    """)
    assert names["log"] == [0, 4, "0", "1", "else"]
    assert script.boundaries == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_a_while_is_at_its_head_only_where_its_condition_was_true(script: LoopScript) -> None:
    names = script.run("""
        done = asked = 0
        def more():
            global asked
            asked += 1
            return done < 3
        while more():
            step()
            done += 1
    """)
    assert names["asked"] == 4
    assert script.numbers_by_line() == {7: [0, 1, 2]}


def test_steps_in_another_function_belong_to_the_loop_that_calls_it(script: LoopScript) -> None:
    script.run("""
        def train_step():
            for parameter in [1, 2]:
                str(parameter).strip()
            step()
        def train():
            for batch in range(3):
                train_step()
        train()
    """)
    assert script.numbers_by_line() == {7: [0, 1, 2]}


def test_a_generator_between_loop_and_step_does_not_count(script: LoopScript) -> None:
    names = script.run("""
        seen = []
        def batches(n):
            for number in range(n):
                yield number * 10
        for batch in batches(3):
            seen.append(batch)
            step()
    """)
    assert names["seen"] == [0, 10, 20]
    assert script.numbers_by_line() == {6: [0, 1, 2]}


def test_recursion_has_an_activation_each(script: LoopScript) -> None:
    names = script.run("""
        order = []
        def descend(depth):
            for turn in range(2):
                order.append((depth, turn))
                if depth:
                    descend(depth - 1)
                step()
        descend(1)
    """)
    assert names["order"] == [(1, 0), (0, 0), (0, 1), (1, 1), (0, 0), (0, 1)]


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


def test_a_batch_that_was_written_into_cannot_be_done_again(script: LoopScript) -> None:
    import torch

    from torchrelay.protocol.errors import StateMismatchError

    script.failures = 1
    with pytest.raises(StateMismatchError, match="wrote into its own batch"):
        script.run(
            """
            for batch in [tensor]:
                batch += 1
                fail()
                step()
            """,
            tensor=torch.zeros(2),
        )


def test_a_further_training_loop_has_boundaries_from_its_second_iteration_on(script: LoopScript) -> None:
    script.run(
        """
        for batch in range(2):
            step()
        for other in range(3):
            before.append(standing())
            step()
            after.append(standing())
    """,
        before=(before := []),
        after=(after := []),
        standing=script.engine.standing_position,
    )
    assert (before, after) == (["after", "body", "body"], ["astray", "after", "after"])
    assert script.numbers_by_line() == {2: [0, 1], 4: [3, 4]}
    assert script.engine.gates_passed == 5
    (said,) = {text for report in script.sent for text in getattr(report, "unprotected", ())}
    assert "a further training loop" in said


def test_loops_that_are_known_to_train_have_a_boundary_at_their_first_head(script: LoopScript) -> None:
    script.run("""
        def train(count):
            for batch in range(count):
                if batch == 3:
                    return
                step()
        for turn in range(2):
            for first in range(2):
                step()
            for second in range(2):
                step()
        train(2)
        train(5)
        train(1)
    """)
    # 4 is both the last head of a loop that is left there and the first one of the next.
    assert script.numbers_by_line() == {7: [0], 8: [1, 4, 5], 10: [3, 6, 7], 3: [9, 10, 11, 12, 13, 13]}


def test_a_boundary_is_not_taken_anew_where_gradients_of_the_loop_before_are_open(script: LoopScript) -> None:
    script.run(
        """
        for epoch in range(2):
            for batch in range(3):
                if batch == 2:
                    backward()
                else:
                    step()
                standings.append(standing())
    """,
        backward=lambda: setattr(script.engine, "gradients_open", True),
        standing=script.engine.standing_position,
        standings=(standings := []),
    )
    assert script.numbers_by_line() == {2: [0], 3: [1, 2, 3, 4]}
    assert standings == ["after", "after", "body", "astray", "after", "body"]


def test_a_loop_that_was_left_without_another_step_cannot_be_gone_back_to(script: LoopScript) -> None:
    script.run(
        """
        for batch in range(3):
            if batch == 2:
                break
            step()
        standings.append(standing())
    """,
        standing=script.engine.standing_position,
        standings=(standings := []),
    )
    assert standings == ["astray"]


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


HALF_MADE = """
    import torch
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = object.__new__(torch.optim.SGD)
    for layer in range(2):  # of a class's own: its base is not initialised yet
        weight.requires_grad_(layer > 0)
"""


def test_half_made_objects_in_a_loop_of_set_up_do_not_cost_the_protection(script: LoopScript) -> None:
    script.run(
        HALF_MADE
        + """
    optimizer.__init__([weight], lr=0.1)
    for batch in range(3):
        step()
        weight.grad, rate = None, optimizer.defaults
    """
    )
    assert script.boundaries == [(0, 9), (1, 9), (2, 9)]
    assert script.engine.capturing


def test_what_cannot_be_captured_in_the_training_loop_costs_it_at_its_first_step(
    script: LoopScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[int] = []
    monkeypatch.setattr(script.engine.comms, "gate", passed.append)
    script.run(
        HALF_MADE
        + """
    for batch in range(3):
        step()
        weight.grad, kind = None, type(optimizer)
    """
    )
    assert (script.boundaries, script.engine.capturing) == ([], False)
    assert "param_groups" in str(script.sent)
    assert passed == [-1, -1, -1], "the others must not wait for it in their gates"


@pytest.fixture
def training(script: LoopScript) -> LoopScript:
    script.tracker.live = True
    return script


def on_a_thread(script: LoopScript, call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(script.engine.beside, call).result()


def test_another_threads_communication_is_reported_and_left_alone(training: LoopScript) -> None:
    assert on_a_thread(training, lambda: 7) == 7
    training.run("for batch in range(2):\n    step()")
    told = [gap.kind for report in training.sent for gap in getattr(report, "gaps", ())]
    assert told[-1:] == ["side-thread"]


def broken() -> None:
    raise RuntimeError(LOST)


def fails() -> None:
    raise RuntimeError("no such file")


def test_another_threads_communication_that_a_loss_breaks_says_so(training: LoopScript) -> None:
    with pytest.raises(UnsupportedError, match="a rank was lost or moved while this thread communicated") as caught:
        on_a_thread(training, broken)
    assert str(caught.value.__cause__) == LOST
    with pytest.raises(RuntimeError, match="no such file"):
        on_a_thread(training, fails)


def test_a_thread_from_before_a_migration_is_not_let_into_the_new_communicators(training: LoopScript) -> None:
    entered: list[str] = []
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: None).result()
        training.engine.comms.now = Generation(1, older=weakref.WeakSet(threading.enumerate()))
        refused = pool.submit(training.engine.beside, lambda: entered.append("old"))
        with pytest.raises(UnsupportedError, match="the new one is not in it"):
            refused.result()
    on_a_thread(training, lambda: entered.append("new"))
    assert entered == ["new"]


def test_without_protection_a_tracker_does_nothing() -> None:
    tracker = LoopTracker()
    items = [1]
    assert tracker.enter("nowhere:1:0") == 0
    assert tracker.loop("nowhere:1:0", 0, items) is items
    tracker.tick("nowhere:1:0")
    assert not tracker.rewound("nowhere:1:0")
    assert tracker.next(iter(items)) == 1
    assert tracker.next(iter(()), None) is None


def test_other_threads_are_left_alone(script: LoopScript) -> None:
    names = script.run("""
        import threading
        log = []
        def work():
            for number in range(3):
                log.append(number)
                step()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    """)
    assert names["log"] == [0, 1, 2]
    assert script.boundaries == []


@pytest.mark.parametrize(
    ("iterator", "kept"), [(iter(range(3)), True), (iter(range(1 << 70)), True), (iter([1]), False)]
)
def test_only_iterators_of_ranges_are_carried_as_they_are(iterator: object, kept: bool) -> None:
    assert (plain_range(iterator) is iterator) is kept


def test_a_loop_knows_the_loaders_of_later_epochs_of_its_generator_and_where_one_is_over(script: LoopScript) -> None:
    over: set[str] = set()
    script.tracker.is_over = over.__contains__
    activation = Activation("site", sys._getframe(), rng.capture(), 1)
    script.tracker.stack.append(activation)
    script.tracker.loader_created("first")
    activation.heads = 6
    script.tracker.loader_created("of the step")
    assert activation.loaders == ["first"]
    script.tracker.drawing = activation
    script.tracker.loader_created("beside it")
    assert activation.loaders == ["first", "beside it"]
    over.add("first")
    script.tracker.loader_created("second")
    assert activation.loaders == [None, "beside it", "second"]
