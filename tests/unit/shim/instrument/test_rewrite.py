"""What is rewritten, and what rewritten loops call. That nothing else changes is shown in tests/integration/transparency."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import pytest

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.instrument.rewrite import HOOKS, instrument


class Recorder:
    """Hooks that note every call; an exception of a type in `rewind` is taken for a rewind, once."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.rewind: tuple[type[BaseException], ...] = ()
        self.is_again = False

    def enter(self, site: str) -> int:
        self.calls.append(("enter", site))
        return 17

    def loop(self, site: str, token: int, iterable: Any) -> Any:
        self.calls.append(("loop", site, token))
        return iterable

    def tick(self, site: str) -> None:
        self.calls.append(("tick", site))

    def again(self, site: str) -> bool:
        is_again = self.is_again
        self.is_again = False
        return is_again

    def rewound(self, site: str) -> bool:
        import sys

        self.calls.append(("rewound", site))
        error = sys.exc_info()[1]
        self.is_again = isinstance(error, self.rewind) and not isinstance(error, SystemExit)
        return self.is_again

    def next(self, iterator: Any, *default: Any) -> Any:
        self.calls.append(("next",))
        return next(iterator, *default)


@pytest.fixture
def hooks() -> Iterator[Recorder]:
    recorder = Recorder()
    setattr(builtins, HOOKS, recorder)
    yield recorder
    delattr(builtins, HOOKS)


def run(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "script"}
    exec(instrument(dedent(source).encode(), "f.py").code, names)
    return names


def rewritten(source: str) -> list[str]:
    """`line kind function` of every loop that was rewritten."""
    return [f"{s.line} {s.kind} {s.function}" for s in instrument(dedent(source).encode(), "f.py").sites]


def test_a_for_loop_enters_before_its_iterable_is_evaluated(hooks: Recorder) -> None:
    run(
        """
        def items():
            __torchrelay__.calls.append("iterable")
            return [1, 2]
        for x in items():
            __torchrelay__.calls.append(x)
        """
    )
    assert hooks.calls == [("enter", "f.py:5:0"), "iterable", ("loop", "f.py:5:0", 17), 1, 2]


def test_a_while_loop_ticks_after_its_condition_was_true(hooks: Recorder) -> None:
    run(
        """
        n = 0
        while __torchrelay__.calls.append("condition") or n < 2:
            n += 1
        """
    )
    site = "f.py:3:0"
    assert hooks.calls == [
        ("enter", site),
        "condition",
        ("tick", site),
        "condition",
        ("tick", site),
        "condition",
    ]


def test_a_while_loop_that_goes_back_does_not_evaluate_its_condition_again(hooks: Recorder) -> None:
    hooks.rewind = (LookupError,)
    names = run(
        """
        batches = iter([1, 2, 3])
        seen = []
        while (batch := next(batches, None)) is not None:
            seen.append(batch)
            if seen == [1, 2]:
                raise LookupError
        """
    )
    assert names["seen"] == [1, 2, 2, 3]
    assert hooks.calls.count(("next",)) == 4


def test_a_while_loop_without_a_condition_stays_one(hooks: Recorder) -> None:
    hooks.rewind = (LookupError,)
    names = run(
        """
        def f():
            while True:
                return 3
        found = f()
        """
    )
    assert names["found"] == 3
    assert "again" not in names["f"].__code__.co_names


def test_a_rewind_goes_on_with_the_next_item(hooks: Recorder) -> None:
    hooks.rewind = (LookupError,)
    names = run(
        """
        seen = []
        for x in list("abc"):
            if x == "b":
                raise KeyError
            seen.append(x)
        else:
            seen.append("else")
        """
    )
    assert names["seen"] == ["a", "c", "else"]


def test_only_the_loop_whose_rewind_it_is_catches_it(hooks: Recorder) -> None:
    hooks.rewind = (KeyError,)
    names = run(
        """
        seen = []
        for x in list("ab"):
            seen.append(x)
            def inner():
                for y in list("cd"):
                    raise ValueError
            try:
                inner()
            except ValueError:
                seen.append("passed through")
        """
    )
    assert names["seen"] == ["a", "passed through", "b", "passed through"]


def test_break_continue_and_return_call_no_hook_of_exceptions(hooks: Recorder) -> None:
    run(
        """
        def f():
            for x in list("abc"):
                if x == "a":
                    continue
                while len(x):
                    break
                return x
        assert f() == "b"
        """
    )
    assert "rewound" not in {call[0] for call in hooks.calls}


def test_sites_know_their_place_and_the_loop_around_them() -> None:
    sites = instrument(
        dedent(
            """
            class Trainer:
                def run(self):
                    for epoch in range(self.n):
                        def callback():
                            for z in self.z:
                                pass
                        if epoch:
                            while (
                                self.more()
                            ):

                                self.step()
                        else:
                            pass
                    else:
                        self.end()
            """
        ).encode(),
        "dir/f.py",
    ).sites
    outer, inner_function, inner = sites
    assert (outer.key, outer.file, outer.line, outer.end_line) == ("dir/f.py:4:8", "dir/f.py", 4, 17)
    assert (outer.kind, outer.parent, outer.function) == ("for", None, "Trainer.run")
    assert (inner_function.parent, inner_function.function) == (None, "Trainer.run.<locals>.callback")
    assert (inner.kind, inner.line, inner.end_line) == ("while", 9, 13)
    assert inner.parent == outer.key


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("for i in range(9):\n    n = i * 2 + 1", []),
        ("while n < 9:\n    n += 1", []),
        ("for i in range(len(x)):\n    step(i)", ["1 for <module>"]),
        ("for x in generator_that_trains:\n    n += 1", ["1 for <module>"]),
        ("for x in loader.items:\n    n += 1", ["1 for <module>"]),
        ("for x in 1, 2:\n    with x: pass", ["1 for <module>"]),
        ("class A:\n    for x in f():\n        g()\n    def m(self):\n        for y in f(): g()", ["5 for A.m"]),
        ("def g():\n    for x in f():\n        yield x", []),
        ("def g():\n    for x in f():\n        k = lambda: (yield x)", ["2 for g"]),
        ("def batches():\n    while f():\n        yield x", []),
        ("def train():\n    while f():\n        yield x", ["2 while train"]),
        ("def train():\n    for x in f():\n        yield x", []),
        ("def train():\n    for x in f():\n        g()\n    yield x", ["2 for train"]),
        ("def inside():\n    while f():\n        yield from self.train_epoch()", ["2 while inside"]),
        ("def inside():\n    while f():\n        yield from loader", []),
        ("async def g():\n    for x in f(): h()\n    def i():\n        for x in f(): h()", ["4 for g.<locals>.i"]),
        ("async def g():\n    async for x in f(): h()", []),
        ("def forward(self, x):\n    for b in self.blocks: x = b(x)", []),
        ("def forward(self, x):\n    for b in self.blocks: x = self.step(x)", []),
        ("def forward(self):\n    for b in self.data:\n        self.net(b).backward()\n        self.o.step()", ["2 for forward"]),
        ("class Net(nn.Module):\n    def features(self, x):\n        for b in self.blocks: x = b(x)", []),
        ("class Net(nn.Module):\n    def fit(self):\n        for b in self.data: self.one(b)", ["3 for Net.fit"]),
        ("class Net(Module):\n    def go(self):\n        for b in self.o: b.step()", ["3 for Net.go"]),
        ("class M(pl.LightningModule):\n    def go(self):\n        for b in self.o: b()", ["3 for M.go"]),
        ("class M(pl.LightningModule):\n    def forward(self):\n        for b in self.o: b()", []),
        ("@torch.compile\ndef f(x):\n    for b in x: b()", []),
        ("@torch.compile(mode='max-autotune')\ndef f(x):\n    for b in x: b()", []),
        ("@partial(torch.compile, dynamic=True)\ndef f(x):\n    for b in x: b()", []),
        ("@torch.jit.script\ndef f(x):\n    def g():\n        for b in x: b()", []),
        ("@triton.jit\ndef f(x):\n    for b in x: b()", []),
        ("@torch.no_grad()\ndef f(x):\n    for b in x: b()", ["3 for f"]),
        ("match x:\n    case 1:\n        for b in x: b()", ["3 for <module>"]),
        ("try:\n    pass\nexcept E:\n    for b in x: b()", ["4 for <module>"]),
        ("try:\n    pass\nfinally:\n    while f(): pass", ["4 while <module>"]),
    ],
)  # fmt: skip
def test_which_loops_are_rewritten(source: str, expected: list[str]) -> None:
    assert rewritten(source) == expected


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("next(it)", 1),
        ("x = [next(it, None) for _ in f(next(it))]", 2),
        ("def g():\n    yield next(it)", 1),
        ("async def g(a=next(it)):\n    await f(next(it))", 2),
        ("f = lambda: next(it)", 1),
        ("@f(next(it))\ndef g(): pass", 1),
        ("with f(next(it)) as x: pass", 1),
        ("match next(it):\n    case 1 if next(it): pass", 2),
        ("try: pass\nexcept f(next(it)): next(it)", 2),
        ("class A(f(next(it))): pass", 0),
        ("next(x for x in it)", 0),
        ("next(self.parameters())", 0),
        ("next(iter(loader))", 1),
        ("next(*args)", 0),
        ("it.next()", 0),
        ("def forward(self):\n    return next(self.it)", 0),
        ("next(it)\ndef f(next): pass", 0),
        ("next(it)\nfrom a import b as next", 0),
        ("next(it)\nfor next in x: pass", 0),
        ("next(it)\nmatch x:\n    case {**next}: pass", 0),
    ],
)
def test_which_calls_of_next_are_rewritten(source: str, count: int) -> None:
    assert instrument(source.encode(), "f.py").next_calls == count


def test_a_module_without_anything_to_rewrite_is_as_python_compiles_it() -> None:
    made = instrument(b"'''doc'''\nx = [y for y in f()]\n", "f.py")
    assert made.code is made.plain


def test_warnings_are_kept_back_and_noted() -> None:
    assert instrument(b"print('\\d')\n", "f.py").warned
    assert not instrument(b"print('d')\n", "f.py").warned


@pytest.mark.parametrize("source", [b"for x in [1:", b"return 1", b"for x in y:\n  break\nbreak", b"\xff"])
def test_what_python_refuses_is_refused(source: bytes) -> None:
    with pytest.raises(SyntaxError):
        instrument(source, "f.py")


def test_loops_that_nest_too_deep_for_the_rewritten_module_are_unsupported() -> None:
    source = "".join(f"{' ' * i}for x{i} in f():\n" for i in range(12)) + " " * 12 + "g()\n"
    with pytest.raises(UnsupportedError, match=r"f\.py cannot be rewritten: too many statically nested blocks"):
        instrument(source.encode(), "f.py")


def test_the_local_names_of_functions_stay_what_they_are() -> None:
    source = b"def f(a):\n    b = 1\n    for c in a():\n        d = lambda: b + c\n    return d\n"
    made = instrument(source, "f.py")
    ours, plain = (next(c for c in m.co_consts if hasattr(c, "co_code")) for m in (made.code, made.plain))
    assert ours.co_code != plain.co_code
    for attribute in (
        "co_varnames",
        "co_cellvars",
        "co_freevars",
        "co_nlocals",
        "co_flags",
        "co_firstlineno",
        "co_name",
    ):
        assert getattr(ours, attribute) == getattr(plain, attribute)


def test_of_an_installed_package_only_functions_that_look_like_training_are_rewritten() -> None:
    source = b"""
for outside in x(): y()
class Trainer:
    def train(self):
        for epoch in self.epochs(): self.one(epoch)
    def one(self, epoch):
        for part in self.parts(): self.look(part)
def update(self):
    for batch in self.loader(): self.loss(batch).backward()
def all_batches(self):
    for batch in self.loader(): self.do(batch)
"""
    made = instrument(source, "f.py", package=True)
    assert [(site.line, site.function) for site in made.sites] == [
        (5, "Trainer.train"),
        (9, "update"),
        (11, "all_batches"),
    ]
