"""The phase `data` strikes as the data of a step is drawn, whatever it is drawn from."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from support.failing_guard import FAILING
from support.loop_script import LoopScript
from torch.utils.data import DataLoader, Dataset

from torchrelay.protocol.options.faults import Fault, FaultKind
from torchrelay.shim.data import data_loader
from torchrelay.shim.observe.data_faults import DataFaults
from torchrelay.shim.observe.fault_injection import FaultInjector

STEPS = 6


class Counted(Dataset[int]):
    """Counts what it was asked for."""

    def __init__(self, size: int) -> None:
        self.size, self.asked = size, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        self.asked += 1
        return index


class Struck:
    """A fault of a device in each step, which is told and then goes on: `at` has (step, line of the script)."""

    def __init__(self, script: LoopScript, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("__init__", "__next__", "_reset", "_next_index"):
            monkeypatch.setattr(data_loader.LoaderIter, name, getattr(data_loader.LoaderIter, name))
        engine = script.engine
        data_loader.install(engine.draws, lambda: True, FAILING)
        faults = tuple(Fault(FaultKind.ECC, 0, step, "data") for step in range(1, STEPS + 1))
        monkeypatch.setattr(engine.link, "send_and_wait", self.tell, raising=False)
        engine.faults = FaultInjector(faults, engine.link, engine.step_now)
        DataFaults(engine).install()
        self.data: Counted | None = None
        self.at: list[tuple[int, int]] = []
        self.asked: list[int] = []
        """How much of the data had been asked for by then."""

    def tell(self, report: Any) -> None:
        frame = sys._getframe(1)
        while not frame.f_code.co_filename.endswith("script.py"):
            assert frame.f_back is not None
            frame = frame.f_back
        self.at.append((report.boundary + 1, frame.f_lineno))
        if self.data is not None:
            self.asked.append(self.data.asked)

    def loader(self, size: int) -> DataLoader[int]:
        self.data = Counted(size)
        return DataLoader(self.data)


@pytest.fixture
def struck(script: LoopScript, monkeypatch: pytest.MonkeyPatch) -> Struck:
    return Struck(script, monkeypatch)


def each_step_in(line: int, first: int = 1) -> list[tuple[int, int]]:
    return [(step, line) for step in range(first, STEPS + 1)]


def test_a_loader_is_struck_before_it_yields(script: LoopScript, struck: Struck) -> None:
    script.run("for x in loader:\n    step()", loader=struck.loader(STEPS))
    assert struck.at == each_step_in(1)
    assert struck.asked == [*range(STEPS)]


def test_a_loader_that_is_asked_ahead_is_struck_once_for_each_draw(script: LoopScript, struck: Struck) -> None:
    source = """
        def ahead(loader):
            items = iter(loader)
            now = next(items)
            for later in items:
                yield now
                now = later
            yield now
        for x in ahead(loader):
            step()
    """
    script.run(source, loader=struck.loader(STEPS))
    assert [step for step, _ in struck.at] == [*range(1, STEPS + 1)]
    assert struck.asked == [0, 2, 3, 4, 5, 6]


def test_a_cycle_is_struck_where_it_yields_what_it_has_kept(script: LoopScript, struck: Struck) -> None:
    source = f"""
        import itertools
        batches = itertools.cycle(loader)
        for _ in range({STEPS}):
            x = next(batches)
            step()
    """
    script.run(source, loader=struck.loader(3))
    assert struck.at == each_step_in(5), "in the body, not where the loop counts"
    assert struck.asked == [0, 1, 2, 3, 3, 3]


def test_a_loader_that_the_body_goes_through_is_struck_and_not_the_loop_around_it(
    script: LoopScript, struck: Struck
) -> None:
    source = f"""
        for epoch in range({STEPS}):
            for x in loader:
                pass
            step()
    """
    script.run(source, loader=struck.loader(2))
    assert struck.at == each_step_in(3)
    assert struck.asked == [2 * done for done in range(STEPS)]


@pytest.mark.parametrize("items", ["range(3)", "[1, 2, 3]", "(i for i in range(3))", "map(abs, range(3))"])
def test_a_training_loop_over_anything_is_struck_from_its_second_step_on(
    items: str, script: LoopScript, struck: Struck
) -> None:
    source = f"""
        for epoch in range(2):
            for x in {items}:
                step()
    """
    script.run(source)
    assert struck.at == each_step_in(3, first=2), "not at the loop around it either"


def test_what_else_is_drawn_after_the_step_is_not_its_data(script: LoopScript, struck: Struck) -> None:
    source = f"""
        names = iter(range(100))
        for x in range({STEPS}):
            step()
            name = next(names)
    """
    script.run(source)
    assert struck.at == each_step_in(3, first=2)


def test_loops_of_the_set_up_are_not_struck(script: LoopScript, struck: Struck) -> None:
    source = """
        names = iter(range(100))
        for x in range(3):
            name = next(names)
        for x in range(2):
            name = next(names)
            step()
    """
    script.run(source)
    assert struck.at == [(2, 6)]


def test_a_generator_s_own_draws_are_part_of_what_it_is_asked_for(script: LoopScript, struck: Struck) -> None:
    source = f"""
        def numbers():
            count = iter(range(100))
            for _ in range({STEPS}):
                next(count)
                yield next(count)
        items = iter(range(100))
        for number in numbers():
            x = next(items)
            step()
    """
    script.run(source)
    assert struck.at == each_step_in(9, first=2)
