"""Spares rehearse while training runs: what they find is told, and what they do is seen by nobody."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import only_in_long
from support.relay_run import Finished, relay
from support.training import SCRIPTS, differences

SCRIPT, RANKS = "rehearsed.py", 2


def rehearsed(
    tmp_path: Path,
    *how: str,
    awaited: str = "rehearsal_finished",
    inject: tuple[str, ...] = (),
    spares: int = 1,
    respawns: int = 0,
) -> Finished:
    return relay(
        tmp_path,
        SCRIPT,
        *how,
        ranks=RANKS,
        spares=spares,
        inject=inject,
        options=["--rehearse-every=1s", f"--respawn-limit={respawns}"],
        environment={"AWAIT": f'"name": "{awaited}"'},
    )


def test_a_spare_that_holds_what_rank_0_holds_says_so_and_stays_a_spare(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = rehearsed(tmp_path, "writes", inject=("kill:rank=0,step=8,phase=backward",))
    first = run.named("rehearsal_finished")[0]
    assert (first["rank"], first["outcome"], first["reason"]) == (0, "same", ""), run.told()
    assert f"rehearsed at step {first['boundary']}: rank 0 of 2, bitwise" in run.stderr
    assert run.status == 0, run.told()
    assert [m["spare"] for m in run.committed()] == [first["spare"]], "the spare was not used up"
    assert differences(undisturbed(SCRIPT, ranks=RANKS), run.out, RANKS) == [], run.told()
    logs = {file.name: file.read_text() for file in tmp_path.glob("log*.txt")}
    assert set(logs.values()) == {"trained"}, logs
    joiner_and_ranks = RANKS + 1
    assert len([name for name in logs if name != "log.txt"]) <= joiner_and_ranks, "a rehearsal left a file"
    assert len(list(tmp_path.glob("folder-*"))) <= joiner_and_ranks, "a rehearsal left a folder"


@pytest.mark.core
def test_what_fails_in_a_rehearsal_is_told_before_a_rank_is_lost_and_costs_no_spare(tmp_path: Path) -> None:
    run = rehearsed(tmp_path, "fails", inject=("kill:rank=0,step=9,phase=backward",))
    first = run.named("rehearsal_finished")[0]
    assert first["outcome"] == "failed", run.told()
    assert first["reason"] == "RuntimeError: this machine lacks something"
    (gap,) = first["gaps"]
    assert Path(gap["file"]).name == SCRIPT
    assert gap["line"] > 0
    assert run.status == 75, run.told()
    assert run.named("checkpoint_saved")
    assert "no process could become rank 0: RuntimeError: this machine lacks something" in run.stderr
    assert [e for e in run.named("worker_exited") if e["worker"] == first["spare"] and e["fenced"]] == []


@only_in_long
def test_a_loss_ends_a_rehearsal_at_once_and_its_spare_takes_over(undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = rehearsed(tmp_path, "slow", awaited="rehearsal_started", inject=("kill:rank=1,step=7,phase=backward",))
    assert run.status == 0, run.told()
    assert run.named("rehearsal_finished")[0]["outcome"] == "broken-off", run.told()
    assert [m["ranks"] for m in run.committed()] == [[1]]
    assert differences(undisturbed(SCRIPT, ranks=RANKS), run.out, RANKS) == [], run.told()


@only_in_long
def test_what_would_be_seen_from_outside_breaks_a_rehearsal_off_before_it_is_done(tmp_path: Path) -> None:
    run = rehearsed(tmp_path, "starts")
    assert run.status == 0, run.told()
    first = run.named("rehearsal_finished")[0]
    assert (first["outcome"], first["reason"]) == ("open", "set-up would have started touch, which others would see")
    assert len(list(tmp_path.glob("started-*"))) == RANKS
    assert (tmp_path / "marker").exists(), "what a rehearsal removes stays"


def test_without_spares_a_process_is_started_to_rehearse_and_is_gone_when_a_rank_is_lost(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    run = rehearsed(tmp_path, "writes", spares=0, respawns=1, inject=("kill:rank=1,step=8,phase=backward",))
    first = run.named("rehearsal_finished")[0]
    assert (first["rank"], first["outcome"], first["reason"], first["spare"]) == (0, "same", "", "n0.t0"), run.told()
    assert f"rehearsed at step {first['boundary']}: rank 0 of 2, bitwise" in run.stderr
    assert run.status == 0, run.told()
    assert [m["spare"] for m in run.committed()] == ["n0.r0"], run.told()
    assert differences(undisturbed(SCRIPT, ranks=RANKS), run.out, RANKS) == [], run.told()
    assert {file.read_text() for file in tmp_path.glob("log*.txt")} == {"trained"}


@only_in_long
def test_without_spares_what_cannot_be_set_up_again_is_told_before_a_rank_is_lost(tmp_path: Path) -> None:
    run = rehearsed(tmp_path, "database", spares=0, respawns=1)
    assert run.status == 0, run.told()
    first = run.named("rehearsal_finished")[0]
    assert (first["outcome"], first["reason"]) == ("failed", "OperationalError: table losses already exists")
    (gap,) = first["gaps"]
    text = (SCRIPTS / SCRIPT).read_text().splitlines()
    assert "CREATE TABLE" in text[gap["line"] - 1], gap
    assert run.named("protection")[-1]["level"] == "partly", run.told()
    assert "torchrelay: warning: partly protected: rank 0 could not be replaced, as a rehearsal has shown" in run.stderr
