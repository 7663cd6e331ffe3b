"""How far a race is: a bar counts the runs of all arms, also those for which no time was left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from torchrelay.cli.race import arms, command, options


@pytest.mark.parametrize("left_s", [1e9, 0.0])
def test_each_run_of_each_arm_counts(left_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[int] = []
    totals: list[int] = []
    ran: list[str] = []

    @contextmanager
    def bar(console: Console, what: str, total: int) -> Iterator[Callable[[int], None]]:
        totals.append(total)
        yield told.append

    def heat(self: Any, arm: Any, repetition: int, due: Any, weights: Any) -> Any:
        ran.append(arm.name)
        figures = SimpleNamespace(training_s=10.0, step_s=0.1)
        result = SimpleNamespace(ended="", figures=figures, wall_s=1.0)
        return SimpleNamespace(result=result, heat=SimpleNamespace(logs=[]), setting=None)

    monkeypatch.setattr(command, "waiting", bar)
    monkeypatch.setattr(command._Held, "_heat", heat)
    monkeypatch.setattr(command._Held, "_left_s", lambda self: left_s)
    held = command._Held(race_in(tmp_path), Console(quiet=True), tmp_path / "work")
    held.arms = [arm for arm in arms.ARMS if arm.name in ("baseline", "torchrelay")]
    held.run()
    assert (totals, told) == ([4], [1, 2, 3, 4])
    assert ran == (["baseline", "torchrelay"] * 2 if left_s else ["baseline"] * 2)


def race_in(out: Path) -> command.RaceOptions:
    return options.of(
        quick=False,
        steps=None,
        ranks=2,
        spares=1,
        faults=2,
        steps_per_fault=None,
        kinds=(),
        seed=0,
        repetitions=2,
        arm_names=(),
        script=None,
        arguments=(),
        scripts_for=[],
        limit_s=60.0,
        out=out,
        page=None,
        workdir=out,
    )
