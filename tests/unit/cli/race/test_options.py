from pathlib import Path
from typing import Any

import pytest

from torchrelay.cli.race import options
from torchrelay.cli.race.command import RaceOptions
from torchrelay.cli.race.faults import RaceFaultKind
from torchrelay.protocol.errors import UserError


def of(**given: Any) -> RaceOptions:
    usual: dict[str, Any] = {
        "quick": False,
        "steps": None,
        "ranks": 2,
        "spares": 1,
        "faults": None,
        "steps_per_fault": None,
        "kinds": (),
        "seed": 0,
        "repetitions": None,
        "arm_names": (),
        "script": None,
        "arguments": (),
        "scripts_for": [],
        "limit_s": 600.0,
        "out": Path("out"),
        "page": None,
        "workdir": Path(),
    }
    return options.of(**{**usual, **given})


def test_quick_is_small_and_has_a_budget() -> None:
    quick = of(quick=True)

    assert (quick.program.steps, quick.repetitions, quick.faults) == (80, 1, 2)
    assert quick.kinds == (RaceFaultKind.KILL, RaceFaultKind.PLANNED)
    assert quick.budget_s is not None
    assert quick.budget_s < 300


def test_there_is_a_fault_for_every_200_steps() -> None:
    assert of(steps=1000).faults == 5
    assert of(steps=100).faults == 2
    assert of(steps=100, faults=0).faults == 0


def test_another_rate_can_be_given() -> None:
    assert of(steps=1000, steps_per_fault=50).faults == 20
    assert of(steps=1000, steps_per_fault=5000).faults == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kinds": ("fire",)}, "--kind fire: one of kill, stop, node, planned"),
        ({"arm_names": ("horovod",)}, "--arm horovod: one of baseline, checkpoint, torchrelay"),
        ({"arguments": ("--lr",)}, "belong to --script"),
        ({"script": Path(__file__), "steps": 50}, "--steps is of the demo"),
        ({"script": Path(__file__), "steps_per_fault": 50}, "--steps-per-fault is of the demo"),
        ({"faults": 2, "steps_per_fault": 50}, "give one of them"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        of(**given)
