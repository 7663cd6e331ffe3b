"""A script's loops in this process: rewritten as they would be, with the real engine behind them and no peers.

The script steps with `step()`, and `fail()` is a collective that a lost peer breaks.
"""

from __future__ import annotations

import sys
import textwrap
import types
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from torchrelay.protocol.journals.journal import JournalWriter
from torchrelay.protocol.logs.log_lines import LogLines, LogPart
from torchrelay.protocol.words.positions import StandingPosition
from torchrelay.shim.instrument import loop_tracker
from torchrelay.shim.instrument.loop_tracker import LoopTracker
from torchrelay.shim.instrument.rewrite import instrument
from torchrelay.shim.script import sites
from torchrelay.shim.set_up.recording import SetUp
from torchrelay.shim.step import training_loop
from torchrelay.shim.step.engine import Engine

LOST = "[gloo] Connection closed by peer"


class LoopScript:
    """`boundaries`: (number, line of the loop) in the order in which they were taken; `failures`: how often `fail` still does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._patch, self.folder = monkeypatch, folder
        self.sent: list[Any] = []
        self.boundaries: list[tuple[int, int]] = []
        self.tracker = LoopTracker()
        link = SimpleNamespace(send=self.sent.append, lost=False)
        self.engine = Engine(
            0, 1, "127.0.0.1", link, JournalWriter(folder / "journal"), self.tracker, LogLines(LogPart.SHIM)
        )  # type: ignore[arg-type]  # a stand-in
        self.engine.set_up = SetUp()
        monkeypatch.setattr(self.engine.updates.gate, "_wait", lambda position: None)
        monkeypatch.setattr(self.engine.comms, "gate", lambda number: None)
        monkeypatch.setattr(self.engine.recovery, "stand", lambda position, error: self._stand(position))
        monkeypatch.setattr("builtins.__torchrelay__", self.tracker, raising=False)
        take = self.engine.take_boundary

        def noted(activation: Any, number: int) -> bool:
            taken = take(activation, number)
            self.boundaries.append((number, sites.SITES[activation.site].line))
            return taken

        monkeypatch.setattr(self.engine, "take_boundary", noted)
        self.failures = 0
        self.stood: list[StandingPosition] = []
        self.goes_back = True
        """From its step, when it has stood there."""

    def _stand(self, position: StandingPosition) -> bool:
        self.stood.append(position)
        return self.goes_back and position in (StandingPosition.BODY, StandingPosition.GATE)

    def _step(self, optimizer: Any = None) -> None:
        frame = sys._getframe(1)
        self.engine.updates.before_step(frame, optimizer)
        self.engine.updates.after_step()

    def _fail(self) -> None:
        if self.failures:
            self.failures -= 1
            self.engine.interrupted(RuntimeError(LOST))

    def run(self, source: str, *, package: bool = False, **names: Any) -> dict[str, Any]:
        """Executes the script, as one of an installed package if so wanted; returns its globals."""
        path = str(self.folder / "script.py")
        made = instrument(textwrap.dedent(source).encode(), path, package=package)
        if package:
            self._patch.setattr(sites, "PACKAGES", sites.PACKAGES | {path})
            for module in (loop_tracker, training_loop):
                self._patch.setattr(module, "PACKAGES", sites.PACKAGES)
        sites.register(path, made.sites, made.code, made.plain)
        module = types.ModuleType("the_script")
        module.__file__ = path
        self._patch.setitem(sys.modules, "the_script", module)
        vars(module).update(step=self._step, fail=self._fail, **names)
        self.tracker.listener = self.engine
        self.engine.draws.live = self.tracker.live = True
        try:
            exec(made.code, vars(module))
        finally:
            self.tracker.live = self.engine.draws.live = False
        return vars(module)

    def numbers_by_line(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for number, line in self.boundaries:
            found.setdefault(line, []).append(number)
        return found
