"""What a `with` block writes is written behind it, unless its manager may swallow an exception."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from torchrelay.shim.adapters.cpython import liveness

found: list[frozenset[str] | None] = []


def look() -> None:
    found.append(liveness.live_locals(sys._getframe(1)))


class Quiet:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: Any) -> None: ...


class SaysFalse(Quiet):
    def __exit__(self, *_: Any) -> Any:
        if _:
            return False
        return None


class HandsOn(SaysFalse):
    def __exit__(self, *error: Any) -> Any:
        if not error:
            return None
        return super().__exit__(*error)


class Swallows(Quiet):
    def __exit__(self, *_: Any) -> Any:
        return True


class HandsOnToIt(Swallows):
    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> Any:
        return super().__exit__(exc_type, exc_val, exc_tb)


class HandsOnAndDenies(SaysFalse):
    def __exit__(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> Any:
        return not super().__exit__(exc_type, exc_val, exc_tb)


class MaySwallow(Quiet):
    def __exit__(self, *error: Any) -> Any:
        return error[0] is StopIteration


@contextlib.contextmanager
def plain() -> Iterator[None]:
    yield


@contextlib.contextmanager
def cleans_up() -> Iterator[None]:
    with Quiet():
        try:
            yield
        finally:
            look()


@contextlib.contextmanager
def catches() -> Iterator[None]:
    try:
        yield
    except StopIteration:
        return


@contextlib.contextmanager
def within_one_that_may() -> Iterator[None]:
    with MaySwallow():
        yield


@contextlib.contextmanager
def raises_another() -> Iterator[None]:
    try:
        yield
    except StopIteration as e:
        raise RuntimeError from e


@contextlib.contextmanager
def yields_from() -> Iterator[None]:
    yield from suppressing()


def suppressing() -> Iterator[None]:
    try:
        yield
    except StopIteration:
        return


def retried(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def retry() -> Iterator[None]:
        with contextlib.suppress(StopIteration):
            yield from function()

    return retry


@contextlib.contextmanager
@retried
def decorated() -> Iterator[None]:
    yield


class Span(Quiet):
    def __init__(self, count: int = 0) -> None:
        self.count = count

    def skipping(self) -> Any:
        return Swallows()


class Told:
    def __get__(self, *_: Any) -> Any:
        return Swallows()

    def __enter__(self) -> None: ...
    def __exit__(self, *_: Any) -> None: ...


class Describes:
    told = Told()


class Dynamic:
    def __init__(self) -> None:
        self.context = Quiet()

    def __getattribute__(self, name: str) -> Any:
        return Swallows()


describes, dynamic = Describes(), Dynamic()


def made_by_a_function() -> Any:
    return Quiet()


class Trainer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.context, self.net = contextlib.nullcontext(), torch.nn.Linear(1, 1)
        self.swallowing = Swallows()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        try:
            yield
        finally:
            pass

    @property
    def told(self) -> Any:
        return Quiet()


trainer = Trainer()
holder = Trainer()
holder.add_module("inner", trainer)
lock = threading.Lock()
quiet = Quiet()
partial = functools.partial(SaysFalse)

NEVER = [
    "torch.no_grad()",
    "torch.inference_mode()",
    "torch.set_grad_enabled(False)",
    "torch.autocast('cpu', dtype=torch.bfloat16)",
    "torch.autocast(device_type='cpu', enabled=len('ab') > 1)",
    "torch.autograd.profiler.record_function('step')",
    "contextlib.nullcontext()",
    "contextlib.closing(trainer)",
    "torch.cuda.amp.autocast(enabled=False)",
    "torch.cpu.amp.autocast()",
    "contextlib.suppress()",
    "HandsOn()",
    "Quiet()",
    "quiet",
    "SaysFalse()",
    "Span(1)",
    "Span(len('a'))",
    "partial()",
    "plain()",
    "cleans_up()",
    "raises_another()",
    "trainer.context",
    "trainer.no_sync()",
    "holder.inner.no_sync()",
    "own",
    "torch.no_grad(), Quiet()",
    "(trainer.no_sync() if item else contextlib.nullcontext())",
    "torch.autocast('cpu', enabled=item > 0)",
]
MAY = [
    "contextlib.suppress(StopIteration)",
    "contextlib.suppress(*[])",
    "contextlib.ExitStack()",
    "HandsOnToIt()",
    "HandsOnAndDenies()",
    "Swallows()",
    "MaySwallow()",
    "catches()",
    "within_one_that_may()",
    "made_by_a_function()",
    "trainer.swallowing",
    "trainer.told",
    "describes.told",
    "dynamic.context",
    "Span(1).skipping()",
    "yields_from()",
    "decorated()",
    "functools.partial(Quiet)()",
    "lock",
    "later",
    "(Quiet() if own else Swallows())",
    "(Swallows() if own else trainer.no_sync())",
    "(own or Quiet())",
    "(later if own else Quiet())",
    "torch.no_grad(), Swallows()",
]


def live_at_head(manager: str) -> frozenset[str]:
    source = f"""
def train(own):
    for item in range(2):
        look()
        later = Quiet()
        with {manager}:
            target = item
        print(target)
"""
    names = dict(globals())
    exec(source, names)
    found.clear()
    names["train"](Quiet())
    assert found[0] is not None
    return found[0]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(trainer, "close", lambda: None, raising=False)


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
@pytest.mark.parametrize("manager", NEVER)
def test_behind_a_block_that_never_swallows_nothing_is_left_of_the_iteration_before(manager: str) -> None:
    assert "target" not in live_at_head(manager)


@pytest.mark.parametrize("manager", MAY)
def test_behind_a_block_that_may_swallow_the_variable_may_be_read(manager: str) -> None:
    assert "target" in live_at_head(manager)


def test_the_manager_is_looked_up_at_each_head() -> None:
    source = """
def train(own):
    for item in range(1):
        look()
        with own:
            target = item
        print(target)
"""
    names: dict[str, Any] = dict(globals())
    exec(source, names)
    found.clear()
    for manager in (Quiet(), Swallows(), Quiet()):
        names["train"](manager)
    assert ["target" in (live or ()) for live in found] == [False, True, False]


@pytest.mark.parametrize("bound", ["own = Swallows() if item else Quiet()", "trainer.context = Swallows()"])
def test_what_the_code_itself_binds_anew_in_front_of_the_block_is_not_known(bound: str) -> None:
    source = f"""
def train(own):
    for item in range(1):
        look()
        {bound}
        with {bound.partition(" ")[0]}:
            target = item
        print(target)
"""
    names: dict[str, Any] = {**globals(), "trainer": Trainer()}
    exec(source, names)
    found.clear()
    names["train"](Quiet())
    assert found[0] is not None
    assert "target" in found[0]


def test_an_exception_that_is_caught_around_the_block_is_a_way_around_it() -> None:
    source = """
def train():
    for item in range(2):
        look()
        try:
            with torch.no_grad():
                target = item
        except ValueError:
            pass
        print(target)
"""
    names: dict[str, Any] = dict(globals())
    exec(source, names)
    found.clear()
    names["train"]()
    assert found[0] is not None
    assert "target" in found[0]


def test_each_block_is_told_by_its_own_manager() -> None:
    source = """
def train():
    for item in range(2):
        look()
        with contextlib.suppress(ValueError):
            first = item
            with torch.no_grad():
                second = item
            print(second)
        with torch.no_grad():
            with Swallows():
                third = item
            fourth = item
        print(first, third, fourth)
"""
    names: dict[str, Any] = dict(globals())
    exec(source, names)
    found.clear()
    names["train"]()
    assert found[0] is not None
    assert found[0] & {"first", "second", "third", "fourth"} == {"first", "third"}
