"""A rank is lost between the gate and its update: nobody can go back, so its step is finished from the gate's journal."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import Finished, assert_unharmed, relay

SCRIPT, RANKS, STEP = "uneven.py", 3, 15


def lose(tmp_path: Path, rank: int, *args: str, ahead: str = "") -> Finished:
    """`ahead`: the ranks that are in the next step already when `rank` is lost; the others have not made their update."""
    struck = tmp_path / "struck"
    environment = {"LOSE_BEHIND_GATE": f"{rank}:{STEP}:{ahead}", "STRUCK": str(struck)}
    run = relay(tmp_path, SCRIPT, *args, ranks=RANKS, environment=environment)
    assert struck.exists(), run.told()
    return run


def assert_finished_from_the_gate(run: Finished, rank: int, others: str = "") -> None:
    decided = " ".join(event["text"] for event in run.named("decision"))
    assert f"all meet after step {STEP}: {others}" in decided, run.told()
    expected = f"rank {rank} goes through step {STEP} from its update on, since its journal ends after step {STEP - 1}"
    assert expected in decided, run.told()
    assert [m["ranks"] for m in run.committed()] == [[rank]], run.told()


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize("rank", few(1, [0, 1]))
def test_the_first_behind_the_gate_is_lost(rank: int, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = lose(tmp_path, rank, "mean")
    assert_unharmed(run, undisturbed(SCRIPT, "mean", ranks=RANKS), RANKS, [], 1)
    left = ", ".join(str(r) for r in range(RANKS) if r != rank)
    assert_finished_from_the_gate(run, rank, f"ranks {left} finish step {STEP}")
    assert run.committed()[0]["steps_redone"] == 0


@only_in_long
@pytest.mark.parametrize(("rank", "ahead"), few(1, [(2, "0,1"), (0, "1,2")]))
def test_the_last_behind_the_gate_is_lost(rank: int, ahead: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = lose(tmp_path, rank, ahead=ahead)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [], 1)
    left = ahead.replace(",", ", ")
    assert_finished_from_the_gate(run, rank, f"ranks {left} go back and do step {STEP + 1} again")


WRITES = [
    *[
        ("shrink", "2"),
        ("gradient", "0,2"),
        ("mean data-average", ""),
        ("average score", "0,2"),
        ("data-swap", "0,2"),
        ("mean average", ""),
    ],
    *[("average read score", "0,2"), ("average read score", "2"), ("average score mean", "")],
    *[("data-read data-clamp", "0,2"), ("data-average read", "0,2"), ("average read data-average", "0,2")],
    *[("data-clamp mean sum", ""), ("data-read data-clamp", "2")],
    *[("average", "0,2"), ("flag", ""), ("mean gradient", ""), ("data-average", "0,2"), ("data-clamp", "2")],
    *[(what, ahead) for what in ("data-average data-clamp", "data-swap") for ahead in ("", "2")],
    *[("data-average data-clamp", "0,2")],
    *[
        (what, "")
        for what in ("data-average mean", "mean data-clamp", "data-swap mean", "mean data-late", "reduce mean")
    ],
    *[(what, ahead) for what in ("shrink", "average", "sum") for ahead in ("", "0,2", "2")],
    *[("flag", "0,2"), ("flag", "2"), ("mean average-late", ""), ("shrink mean", ""), ("shrink mean sum", "")],
]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "ahead"), few(1, list(dict.fromkeys(WRITES))))
def test_tensors_that_are_written_after_the_optimizer_step_are_as_they_would_have_been(
    what: str, ahead: str, undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = lose(tmp_path, 1, *what.split(), ahead=ahead)
    assert_unharmed(run, undisturbed(SCRIPT, *what.split(), ranks=RANKS), RANKS, [], 1)
    assert_finished_from_the_gate(run, 1)


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "ahead", "reason"),
    few(
        1,
        [
            ("wide", "0,2", "what a lost rank read there cannot be told any more"),
        ],
    ),
)
def test_what_cannot_be_restored_ends_in_a_checkpoint_and_never_in_wrong_numbers(
    what: str, ahead: str, reason: str, tmp_path: Path
) -> None:
    run = lose(tmp_path, 1, *what.split(), ahead=ahead)
    assert run.status == 75, run.told()
    assert reason in run.told()


@only_in_long
def test_what_no_joiner_could_be_led_to_ends_the_job_at_once_and_burns_no_spare(tmp_path: Path) -> None:
    run = lose(tmp_path, 1, "tee")
    assert run.status == 137, run.told()
    assert run.named("migration_started") == [], run.told()
    reason = run.named("job_finished")[0]["reason"]
    assert "turns (_tee): what it yields next cannot be captured: no rank can be replaced" in reason
    assert f"{SCRIPT}:" in reason


@only_in_long
def test_one_is_lost_behind_the_gate_with_one_ahead_and_one_beside_it(undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = lose(tmp_path, 1, ahead="2")
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, [], 1)
    assert_finished_from_the_gate(run, 1)


@only_in_long
def test_a_first_step_that_goes_past_the_wrapper_is_not_finished_with_another_ranks_tensors(tmp_path: Path) -> None:
    """The script calls the module inside of its DistributedDataParallel: the wrapper keeps nothing equal."""
    fault = "kill:rank=1,step=1,phase=optimizer"
    run = relay(tmp_path, "hooks.py", "bypassed", ranks=2, inject=[fault])
    assert (run.faults(), run.committed()) == ([fault], []), run.told()
    assert run.status == 128 + signal.SIGKILL, run.told()
    assert "went past the data parallel wrapper" in run.named("job_finished")[0]["reason"], run.told()
