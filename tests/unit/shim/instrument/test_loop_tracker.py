from __future__ import annotations

import contextlib
import sys
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import pytest
from support.loop_script import LoopScript

from torchrelay.shim.adapters.tensors import graph_order
from torchrelay.shim.capture import rng
from torchrelay.shim.instrument.activation import Activation
from torchrelay.shim.instrument.loop_tracker import LoopTracker


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


def test_a_loop_over_several_optimizers_is_not_the_training_loop(script: LoopScript) -> None:
    script.run(
        """
        for epoch in range(2):
            for batch in range(3):
                backward()
                for optimizer in range(2):
                    step()
    """,
        backward=script.tracker.computing,
    )
    assert script.boundaries == [(0, 2), (1, 3), (2, 3), (3, 3), (4, 3), (5, 3)]


def test_a_loop_over_what_a_step_returns_is_not_the_training_loop(script: LoopScript) -> None:
    script.run(
        """
        def losses():
            backward()
            step()
            return [1, 2, 3]
        for epoch in range(2):
            for batch in range(3):
                for value in losses(): pass
    """,
        backward=script.tracker.computing,
    )
    assert script.boundaries == [(0, 6), (1, 7), (2, 7), (3, 7), (4, 7), (5, 7)]


def test_a_loop_over_callbacks_one_of_which_computes_the_gradients_of_a_loss_is_not_the_training_loop(
    script: LoopScript,
) -> None:
    script.run(
        """
        import torch
        weight = torch.ones(1, requires_grad=True)
        for epoch in range(2):
            for batch in range(3):
                loss = (weight * 2).sum()
                for callback in range(3):
                    if callback == 1:
                        backward(loss / 2)
                        step()
    """,
        backward=lambda loss: script.tracker.computing(graph_order.oldest(loss)),
    )
    assert script.boundaries == [(0, 4), (1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]


def test_a_step_that_comes_before_the_gradients_of_its_iteration_has_the_same_training_loop(script: LoopScript) -> None:
    script.run(
        """
        for epoch in range(2):
            for batch in range(3):
                if batch > 0:
                    step()
                backward()
    """,
        backward=script.tracker.computing,
    )
    assert script.numbers_by_line()[3] == [1, 2, 3]


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


ENGINE = """
    def epoch():
        turn = 0
        while turn < 3:
            turn += 1
            step()
            if asked_to_stop:
                yield turn
    def engine():
        number = 0
        while number < 2:
            number += 1
            yield from epoch()
        return "done"
"""


def test_a_generator_that_trains_in_one_draw_has_its_training_loop_inside_of_it(script: LoopScript) -> None:
    names = script.run(f"asked_to_stop = False\n{dedent(ENGINE)}\nresult = next(engine(), 'done')")
    assert names["result"] == "done"
    assert script.numbers_by_line() == {12: [0], 5: [1, 2, 3, 4, 5]}


@pytest.mark.parametrize(
    ("around", "expected"),
    [
        ("next(engine(), None)", [False] * 6),
        ("for turn in engine(): pass", [True] * 6),
        ("running = engine()\nwhile True:\n    next(running)", [False, True, True] * 2),
        ("for turn in range(2): work()", [False] * 2),
        ("for turn in range(2): sum(work() for _ in range(2))", [False] * 4),
    ],
)
def test_a_step_that_is_made_for_a_loop_that_draws_is_told_from_one_in_its_body(
    script: LoopScript, around: str, expected: list[bool]
) -> None:
    found: list[bool] = []

    def work() -> int:
        frame = sys._getframe(1)
        running = script.tracker.running(frame)
        found.append(script.tracker.is_in_draw(frame, running[-1] if running else None))
        return 1

    source = f"asked_to_stop = {around != 'next(engine(), None)'}\n{dedent(ENGINE).replace('step()', 'work()')}\n"
    with contextlib.suppress(StopIteration):
        script.run(f"{source}{around}", work=work)
    assert found == expected


def test_a_generator_that_trains_and_yields_ends_protection_when_it_has_yielded(script: LoopScript) -> None:
    source = f"asked_to_stop = True\n{dedent(ENGINE)}\nrunning = engine()\nstep()\nnext(running)\nafter_draw()\nrunning.close()"
    seen: list[bool] = []
    script.run(source, after_draw=lambda: seen.append(script.engine.capturing))
    assert seen == [False]
    assert "has yielded" in script.engine.unprotected.reason


def test_a_generator_that_is_closed_ends_also_where_results_may_be_garbage(script: LoopScript) -> None:
    def close(running: Any) -> None:
        script.tracker.listener = SimpleNamespace(may_be_of_garbage=lambda: True, caught=lambda error, activation: True)  # type: ignore[assignment]  # what is asked of it here
        running.close()

    script.run(
        f"asked_to_stop = True\n{dedent(ENGINE)}\nrunning = engine()\nstep()\nnext(running)\nclose(running)",
        close=close,
    )


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


def test_a_further_training_loop_that_does_not_look_like_one_has_boundaries_from_its_second_iteration_on(
    script: LoopScript,
) -> None:
    script.run(
        """
        advance = step
        for batch in range(2):
            advance()
        for other in range(3):
            before.append(standing())
            advance()
            after.append(standing())
    """,
        before=(before := []),
        after=(after := []),
        standing=script.engine.standing_position,
    )
    assert (before, after) == (["after", "body", "body"], ["astray", "after", "after"])
    assert script.numbers_by_line() == {3: [0, 1], 5: [3, 4]}
    assert script.engine.step.gates_passed == 5
    said = {text for report in script.sent for text in getattr(report, "unprotected", ())}
    assert any("a further training loop" in text for text in said), said


def test_a_further_loop_that_looks_like_training_has_a_boundary_at_its_first_head(script: LoopScript) -> None:
    script.run(
        """
        def advance():
            step()
        for batch in range(2):
            advance()
        for epoch in range(2):
            for other in range(3):
                before.append(standing())
                step()
        for inner in range(2):
            def train_step():
                advance()
            train_step()
    """,
        before=(before := []),
        standing=script.engine.standing_position,
    )
    assert before == ["body"] * 6
    # The loop around the second one stands in for it until it comes round.
    assert script.numbers_by_line() == {4: [0, 1], 6: [2], 7: [3, 4, 5, 6, 7], 10: [8, 9]}
    said = {text for report in script.sent for text in getattr(report, "unprotected", ())}
    assert not any("a further training loop" in text for text in said), said


def test_a_loop_that_only_looks_like_training_stands_in_once(script: LoopScript) -> None:
    script.run("""
        class Environment:
            def step(self):
                pass
        for batch in range(2):
            step()
        def roll_out(count):
            for turn in range(count):
                Environment().step()
        roll_out(3)
        for batch in range(2):
            step()
        roll_out(3)
    """)
    assert script.numbers_by_line() == {5: [0, 1], 8: [2], 11: [2, 3]}


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
    assert script.numbers_by_line() == {7: [0], 8: [1, 4, 5], 10: [2, 3, 6, 7], 3: [8, 9, 10, 11, 12, 13, 13]}


LEFT_OVER = """
    import torch
    model = torch.nn.Linear(1, 1)
    for epoch in range(2):
        if drops:
            model.zero_grad()
        for batch in range(3):
            if batch == 2:
                model.weight.grad = torch.ones(1, 1)
                backward()
            else:
                step()
            standings.append(standing())
"""


@pytest.mark.parametrize(
    ("drops", "boundaries", "then"), [(False, [1, 2, 3, 4], "astray"), (True, [1, 2, 2, 3, 4], "after")]
)
def test_a_boundary_is_taken_anew_where_the_script_drops_the_gradients_that_the_loop_before_has_left(
    drops: bool,
    boundaries: list[int],
    then: str,
    script: LoopScript,
) -> None:
    script.run(
        LEFT_OVER,
        drops=drops,
        backward=lambda: script.engine.step.computed_gradients(),
        standing=script.engine.standing_position,
        standings=(standings := []),
    )
    assert script.numbers_by_line() == {4: [0], 7: boundaries}
    assert standings == ["after", "after", "body", then, "after", "body"]


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


@pytest.mark.parametrize("steps", [0, 1])
def test_gradients_without_an_update_that_is_seen_are_told_in_the_end(steps: int, script: LoopScript) -> None:
    script.run(
        """
        for batch in range(1025):
            backward()
            if batch < steps:
                step()
    """,
        steps=steps,
        backward=lambda: script.engine.updates.gradients_begin(),
    )
    told = "gradients were computed 1,024 times, and no optimizer of torch's was stepped: steps of others are not seen"
    assert script.engine.unprotected.reason == ("" if steps else told)


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
