"""Training loops one after the other: a rank is replaced in each of them, and the job ends bitwise as if it had not been."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay

SCRIPT, RANKS = "phases.py", 2
SLOWLY = {"STEP_S": "0.08"}
"""For a planned move, which stops some tenths of a second ahead: these loops are short."""


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fault"),
    few(
        1,
        [
            ("finetune", "kill:rank=1,step=13,phase=backward"),
            ("turns", "kill:rank=0,step=7,phase=forward"),
            ("twice", "kill:rank=0,step=20,phase=after-step"),
            ("turns", "kill:rank=1,step=18,phase=backward"),
            ("stopped", "kill:rank=1,step=11,phase=backward"),
            ("finetune", "kill:rank=0,step=17,phase=optimizer"),
            ("twice", "kill:rank=1,step=13,phase=forward"),
            ("turns", "kill:rank=0,step=24,phase=gate"),
        ],
    ),
)
def test_a_rank_is_replaced_in_a_later_loop(kind: str, fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, [fault], 1)


@only_in_long
@pytest.mark.parametrize(
    "fault", few(1, ["kill:rank=1,step=22,phase=backward", "kill:rank=0,step=27,phase=after-step"])
)
def test_a_rank_is_replaced_behind_a_loop_that_what_it_computed_has_ended(
    fault: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = relay(tmp_path, SCRIPT, "early", ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed(SCRIPT, "early", ranks=RANKS), RANKS, [fault], 1)


@only_in_long
@pytest.mark.parametrize(
    ("kind", "step"),
    few(1, [("turns", 19), pytest.param("finetune", 11, id="asked for in the one before"), ("finetune", 17)]),
)
def test_a_rank_is_moved_in_a_later_loop(kind: str, step: int, undisturbed: Undisturbed, tmp_path: Path) -> None:
    fault = f"planned:rank=1,step={step}"
    run = relay(tmp_path, SCRIPT, kind, ranks=RANKS, inject=[fault], planned_at=[step], environment=SLOWLY)
    assert_unharmed(run, undisturbed(SCRIPT, kind, ranks=RANKS), RANKS, [f"{fault},phase=forward"], 1)
    assert run.committed()[0]["kind"] == "planned"


def test_a_loss_before_a_loop_is_known_to_train_ends_the_job_with_the_reason(tmp_path: Path) -> None:
    # Copies of the first steps, where they are still there, would save the job.
    fault, options = "kill:rank=1,step=13,phase=backward", ["--buddy-every=0"]
    run = relay(tmp_path, SCRIPT, "hidden", ranks=RANKS, inject=[fault], options=options)
    assert run.faults() == [fault], run.told()
    assert run.status not in (0, 76), run.told()
    assert not list(run.out.iterdir()), run.told()
    assert "in a forward, backward, pipeline step or message that cannot be called again" in run.told()
    assert run.committed() == []
