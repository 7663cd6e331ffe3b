"""Which locals can still be read; seen on CPython 3.10 to 3.13."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from torchrelay.shim.adapters.cpython import liveness
from torchrelay.shim.bootstrap.standby import Standby
from torchrelay.shim.instrument.rewrite import HOOKS, instrument

Probe = Callable[[], None]


def recorder() -> tuple[list[frozenset[str] | None], Probe]:
    found: list[frozenset[str] | None] = []
    return found, lambda: found.append(liveness.live_locals(sys._getframe(1)))


class Heads:
    """An iterator that looks at the frame of the loop around it."""

    def __init__(self, items: list[Any]) -> None:
        self.items = iter(items)
        self.found: list[frozenset[str] | None] = []

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.found.append(liveness.live_locals(sys._getframe(1)))
        return next(self.items)


def test_at_a_loops_head_the_leftovers_of_the_last_iteration_are_dead() -> None:
    def train(heads: Heads) -> float:
        total, hidden = 0.0, 1.0
        for x, y in heads:
            logits = x * hidden
            loss = logits - y
            total += loss
            hidden = logits
        return total

    heads = Heads([(1.0, 2.0), (3.0, 4.0)])
    train(heads)
    for live in heads.found:
        assert live is not None
        assert {"total", "hidden"} <= live
        assert not {"x", "y", "logits", "loss"} & live


def test_at_the_gate_what_is_read_afterwards_is_live_and_what_is_not_is_dead() -> None:
    found, step = recorder()

    def train() -> list[float]:
        history = []
        for x in (1.0, 2.0):
            logits = x * 3
            loss = logits - 1
            step()
            history.append(loss)
        return history

    train()
    for live in found:
        assert live is not None
        assert {"loss", "history"} <= live
        assert not {"logits", "x"} & live


def test_a_value_read_in_an_exception_handler_is_live() -> None:
    found, step = recorder()

    def train() -> None:
        kept = "needed"
        try:
            step()
        except ValueError:
            print(kept)

    train()
    assert found[0] is not None
    assert "kept" in found[0]


def test_a_value_read_in_another_branch_or_round_is_live() -> None:
    found, step = recorder()

    def train(flag: bool) -> None:
        best = 0
        n = 0
        while n < 2:
            if n and flag:
                print(best)
            step()
            n += 1

    train(False)
    assert all(live is not None and {"best", "n", "flag"} <= live for live in found)


def test_a_models_method_eval_is_not_the_function_that_reads_any_variable() -> None:
    found, step = recorder()

    def train(model: Any) -> None:
        dead = model.eval()
        del dead
        step()
        model.vars = model.dir

    train(type("Model", (), {"eval": lambda self: None, "dir": 1})())
    assert found[0] is not None
    assert "dead" not in found[0]


def test_variables_of_closures_are_always_live() -> None:
    found, step = recorder()

    def train() -> Callable[[], int]:
        shared = 1

        def later() -> int:
            return shared

        step()
        return later

    train()
    assert found[0] is not None
    assert "shared" in found[0]


@pytest.mark.parametrize(
    "reads",
    [
        "[f(y) for f in fs]",
        "{f(y) for f in fs}",
        "{f: f(y) for f in fs}",
        "sum(f(y) for f in fs)",
        "[[y for _ in fs] for _ in fs]",
    ],
)
def test_a_variable_that_a_comprehension_reads_is_read_there(reads: str) -> None:
    live = live_at_heads(f"y = x\n        print({reads})")
    assert "y" not in live
    assert "y" in live_at_heads(f"print({reads})\n        y = x")


@pytest.mark.parametrize("reads", ["[(lambda: y) for f in fs]", "(lambda: y)", "sorted(fs, key=lambda f: y)"])
def test_a_variable_that_a_function_within_reads_is_always_live(reads: str) -> None:
    assert "y" in live_at_heads(f"y = x\n        print({reads})")


def live_at_heads(body: str) -> frozenset[str]:
    """Return the names that are live at the second head of a loop with this body."""
    found, step = recorder()
    names: dict[str, Any] = {"step": step, "print": lambda *_: None}
    source = f"""
def train(fs, y):
    for x in range(2):
        step()
        {body}
"""
    exec(source, names)
    names["train"]([hash], 0)
    assert found[1] is not None
    return found[1]


@pytest.mark.parametrize(
    "reads", ["vars()", "locals()", "dir()", "eval('left')", "exec('left')", "[*map(eval, ['left'])]"]
)
def test_a_function_that_may_read_any_variable_does_so_where_it_is_named(reads: str) -> None:
    found, step = recorder()
    source = f"def train(step):\n    left = 1\n    step()\n    {reads}\n    for n in range(2):\n        left = n\n        step()\n"
    names: dict[str, Any] = {}
    exec(compile(source, "script.py", "exec"), names)
    names["train"](step)
    assert [live is not None and "left" in live for live in found] == [True, False, False]


@pytest.mark.parametrize("reads", ["vars(options)", "dir(options)", "str(vars(options.inner))", "vars(*[options])"])
def test_what_is_read_of_an_object_is_no_variable(reads: str) -> None:
    found, step = recorder()
    source = f"def train(step, options):\n    for n in range(2):\n        left = n\n        step()\n        {reads}\n"
    names: dict[str, Any] = {}
    exec(compile(source, "script.py", "exec"), names)
    names["train"](step, type("Options", (), {"inner": Exception()})())
    assert [live is not None and "left" in live for live in found] == [False, False]


@pytest.mark.parametrize("reads", ["(lambda read: 0)(vars)", "print(len(vars()))"])
def test_one_that_is_handed_on_counts_as_reading_all(reads: str) -> None:
    found, step = recorder()
    source = f"def train(step):\n    left = 1\n    step()\n    {reads}\n"
    names: dict[str, Any] = {}
    exec(compile(source, "script.py", "exec"), names)
    names["train"](step)
    assert [live is not None and "left" in live for live in found] == [True]


def test_an_earlier_iteration_of_the_loop_counts_too() -> None:
    found, step = recorder()

    def train() -> None:
        for n in range(2):
            step()
            print(len(vars()))
            left = n
            del left

    train()
    assert all(live is not None and {"n", "left"} <= live for live in found)


@pytest.mark.parametrize(
    "source",
    [
        "def train(step):\n    read = locals\n    left = 1\n    step()\n    return read()\n",
        "left = 1\nexec('def train(step):\\n  step()\\n  return left')\n",
    ],
)
def test_all_are_live_where_such_a_function_is_kept_or_defines_others(source: str) -> None:
    found: list[Any] = []
    names: dict[str, Any] = {"step": lambda: found.append(liveness.live_locals(sys._getframe(1)))}
    code = compile(source + "step()\n", "script.py", "exec")
    exec(code, names)
    names["train"](names["step"])
    assert (found[0] if "exec" in source else found[1]) is None


@pytest.mark.parametrize(
    ("function", "dead"),
    [
        ("def later(): return model.eval()", {"left"}),
        ("def later(): return globals()['left']", set()),
        ("class A:\n    def later(self): return eval('left')", set()),
    ],
)
def test_variables_of_a_module_whose_functions_read_by_name_are_live(function: str, dead: set[str]) -> None:
    found: list[liveness.CodeLiveness] = []
    source = f"{function}\nleft = 1\nstep()\n"
    exec(compile(source, "script.py", "exec"), {"step": lambda: found.append(liveness.answer(sys._getframe(1)))})
    assert found[0].dead & {"left"} == dead


@pytest.mark.parametrize("further_lines", [0, 400])
def test_a_variable_that_a_rewritten_loop_binds_anew_is_dead_while_it_is_made(further_lines: int) -> None:
    """The jumps of a long loop have arguments that take instructions of their own."""
    found: list[frozenset[str] | None] = []
    further = "        x = n\n" * further_lines
    source = f"def train():\n    for n in range(2):\n        model = make(n)\n{further}    return model\n"
    names: dict[str, Any] = {"make": lambda n: found.append(liveness.live_locals(sys._getframe(1))), HOOKS: Standby()}
    exec(instrument(source.encode(), "script.py").code, names)
    names["train"]()
    assert found[0] is not None
    assert "model" not in found[0]


def test_a_loop_that_is_about_to_go_on_from_our_handler_has_the_variables_of_its_head() -> None:
    found: list[frozenset[str] | None] = []

    class Hooks(Standby):
        def rewound(self, site: str) -> bool:
            found.append(liveness.live_locals(sys._getframe(1)))
            return True

    names: dict[str, Any] = {HOOKS: Hooks(), "fail": lambda: 1 / 0}
    source = "def train(kept, other):\n    for n in range(1):\n        fail()\n        other = kept\n    return other\n"
    exec(instrument(source.encode(), "script.py").code, names)
    names["train"](1, 2)
    assert found[-1] is not None
    assert {"kept", "other"} <= found[-1]


def parts_read() -> tuple[list[dict[str, tuple[str, ...]]], Probe]:
    found: list[dict[str, tuple[str, ...]]] = []
    return found, lambda: found.append(dict(liveness.answer(sys._getframe(1)).partly))


class Output:
    def __init__(self) -> None:
        self.loss, self.extra, self.logits = 1.0, [2.0], [0.0] * 9

    def method(self) -> float:
        return self.loss


def test_of_a_variable_whose_attributes_alone_are_read_these_are_told() -> None:
    found, step = parts_read()

    def train() -> list[float]:
        history = []
        for _ in range(2):
            outputs = Output()
            step()
            history.append(outputs.loss)
            history.append(outputs.extra[0] if outputs.extra is not None else 0.0)
        return history

    train()
    assert [parts["outputs"] for parts in found] == [("extra", "loss")] * 2
    assert all("history" not in parts for parts in found)


def test_a_variable_that_is_only_deleted_has_to_be_there_and_no_more() -> None:
    found, step = parts_read()
    lives, probe = recorder()

    def train() -> None:
        for _ in range(2):
            outputs, loss = Output(), 1.0
            step()
            probe()
            del outputs, loss

    train()
    assert [parts["outputs"] for parts in found] == [(), ()]
    assert all(live is not None and {"outputs", "loss"} <= live for live in lives)


def test_a_method_is_told_apart_from_an_attribute() -> None:
    found, step = parts_read()

    def train() -> float:
        outputs = Output()
        step()
        return outputs.method()

    train()
    assert found[0]["outputs"] == ("method()",)


@pytest.mark.parametrize("kind", ["given on", "written to", "bound again", "in a closure"])
def test_a_variable_that_is_used_otherwise_counts_as_read_whole(kind: str) -> None:
    found, step = parts_read()

    def given_on() -> None:
        outputs = Output()
        step()
        print(outputs.loss, outputs)

    def written_to() -> None:
        outputs = Output()
        step()
        outputs.loss += 1.0

    def bound_again() -> None:
        outputs = Output()
        step()
        other = outputs
        print(outputs.loss, other.loss)

    def in_a_closure() -> None:
        outputs = Output()
        step()
        print([outputs.loss for _ in range(2)], (lambda: outputs)())

    {"given on": given_on, "written to": written_to, "bound again": bound_again, "in a closure": in_a_closure}[kind]()
    assert "outputs" not in found[0]
