"""From what a job that cannot go on is started anew, what is kept for that, and how it goes."""

from __future__ import annotations

import asyncio
import io
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from torchrelay.cli.command_line.checked import check
from torchrelay.cli.command_line.given import GivenOptions
from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.controller_client.follow import JobFollower
from torchrelay.cli.display.summary import RunSummary
from torchrelay.cli.display.teller import Teller
from torchrelay.cli.machine import LocalMachine
from torchrelay.cli.restarting import runs
from torchrelay.cli.restarting.checkpoints import (
    NOBODY_WRITES_S,
    own_checkpoints,
    remove_forgotten,
    remove_old,
)
from torchrelay.cli.restarting.choice import Fall, RestartChoice, Saved, choose
from torchrelay.cli.restarting.life_sign import BELIEVED_S, LifeSign, needed
from torchrelay.cli.restarting.runs import Runs, faults_left
from torchrelay.protocol.events import (
    FaultFired,
    JobFell,
    JobFinished,
    JobStarted,
    MigrationFinished,
    MigrationStarted,
    Occurrence,
    PhaseChanged,
    ProcessRespawned,
    WorkerEnded,
    to_job_event,
)
from torchrelay.protocol.names import MANIFEST
from torchrelay.protocol.options.faults import parse_fault

JIT, OLD = Saved("jit/new", 30), Saved("jit/old", 20)
LOST = Fall("rank 1 was killed", 75, 30, saved=JIT)


def chosen(
    fall: Fall, *before: Fall, most: int = 3, asked: bool = False, broken: tuple[str, ...] = ()
) -> RestartChoice:
    return choose(fall, before, most, asked, [OLD], broken)


def test_rungs_are_tried_in_their_order_and_each_refused_one_says_why() -> None:
    first = chosen(LOST)
    assert (first.rung, first.saved, first.tried) == ("jit-checkpoint", JIT, ())
    unsaved = replace(LOST, saved=None, refused="no rank is left")
    second = chosen(unsaved)
    assert (second.rung, second.saved) == ("earlier-checkpoint", OLD)
    assert second.tried == ("jit-checkpoint: no rank is left",)
    third = chosen(unsaved, broken=(OLD.directory,))
    assert (third.rung, third.saved) == ("script", None)
    assert third.tried[1] == "earlier-checkpoint: there is none that can be used"


def test_a_folder_that_ranks_could_not_enter_from_is_not_taken_again() -> None:
    assert chosen(LOST, broken=(JIT.directory,)).saved == OLD


def test_a_script_that_fails_by_itself_ends_the_job_unless_restarts_were_asked_for() -> None:
    failed = Fall("ValueError", 1, 30, by_script=True)
    assert "failed by itself" in chosen(failed).reason
    assert chosen(failed).rung == ""
    assert chosen(failed, asked=True).rung == "script"


@pytest.mark.parametrize(
    ("code", "step", "rung"), [(139, 0, ""), (139, -1, ""), (137, -1, "script"), (139, 5, "script")]
)
def test_a_program_that_ends_itself_before_its_first_step_is_not_started_again(code: int, step: int, rung: str) -> None:
    assert choose(Fall("signal", code, step), [], 3, False, []).rung == rung


def test_the_third_end_at_the_same_step_is_the_last_one() -> None:
    assert chosen(LOST, LOST).rung == "jit-checkpoint"
    assert "at step 30 3 times" in chosen(LOST, LOST, LOST).reason
    elsewhere = replace(LOST, step=31)
    assert chosen(LOST, LOST, elsewhere).rung == "jit-checkpoint"


def test_ends_at_the_same_step_do_not_count_once_the_job_has_come_past_it() -> None:
    further, begins = replace(LOST, step=57), replace(LOST, step=-1, saved=None)
    assert chosen(LOST, LOST, LOST, further, most=9).rung == "jit-checkpoint"
    assert chosen(begins, begins, further, begins, most=9).rung == "earlier-checkpoint"
    assert "before the first step 3 times" in chosen(begins, further, begins, begins, most=9).reason


def test_there_are_no_more_restarts_than_asked_for() -> None:
    falls = [replace(LOST, step=step) for step in (1, 2, 3)]
    assert chosen(LOST, *falls).reason == "it has been started again 3 times (--max-restarts 3)"
    assert chosen(LOST, most=0).reason == "it is not to be started again (--max-restarts 0)"


def folder(jit: Path, name: str, whole: bool = True) -> str:
    (jit / name).mkdir(parents=True)
    if whole:
        (jit / name / MANIFEST).write_text("{}")
    return str(jit / name)


def test_a_run_keeps_its_newest_checkpoints_and_touches_nobody_elses(tmp_path: Path) -> None:
    oldest, older = folder(tmp_path, "000000ab-step99"), folder(tmp_path, "000000ab-again1-step30")
    newest, others = folder(tmp_path, "000000ab-again2-step20"), folder(tmp_path, "00000abc-step1")
    torn = folder(tmp_path, "000000ab-again3-step21", whole=False)
    assert [s.directory for s in own_checkpoints([tmp_path], "000000ab")] == [oldest, older, newest]
    remove_old([tmp_path], "000000ab", 2)
    assert [Path(f).exists() for f in (oldest, older, newest, torn, others)] == [False, True, True, False, True]
    remove_old([tmp_path], "000000ab", 0)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000abc-step1"]


def test_a_checkpoint_that_somebody_asked_for_is_found_and_is_not_removed_with_the_others(tmp_path: Path) -> None:
    asked, made = folder(tmp_path, "000000ab-step5-asked"), folder(tmp_path, "000000ab-step9")
    torn = folder(tmp_path, "000000ab-step12-asked", whole=False)
    assert [(s.directory, s.step) for s in own_checkpoints([tmp_path], "000000ab")] == [(asked, 5), (made, 9)]
    remove_old([tmp_path], "000000ab", 1)
    assert [Path(f).exists() for f in (asked, made, torn)] == [True, True, False]
    remove_old([tmp_path], "000000ab", 0)
    assert [Path(f).exists() for f in (asked, made)] == [True, False]


def written(path: str, at_s: float) -> None:
    for each in (Path(path), *Path(path).iterdir()):
        os.utime(each, (at_s, at_s))


def test_what_ended_runs_have_left_is_bounded_and_what_a_crash_cut_short_is_removed(tmp_path: Path) -> None:
    now_s = 1e9
    whole = [folder(tmp_path, f"0000000{n:x}-step5") for n in range(12)]
    torn, fresh = folder(tmp_path, "aaaaaaaa-step1", whole=False), folder(tmp_path, "bbbbbbbb-step1", whole=False)
    foreign = folder(tmp_path, "cccccccc-step1", whole=False)
    for number, path in enumerate(whole):
        written(path, now_s - 10_000 + number)
    (Path(torn) / "rank-0-tensors").mkdir()
    (Path(foreign) / "thesis.tex").touch()
    written(torn, now_s - NOBODY_WRITES_S - 1)
    written(foreign, now_s - NOBODY_WRITES_S - 1)
    written(fresh, now_s - NOBODY_WRITES_S + 1)
    remove_forgotten([tmp_path], now_s)
    assert [Path(path).exists() for path in whole] == [False, False] + [True] * 10
    assert [Path(path).exists() for path in (torn, fresh, foreign)] == [False, True, True]


def test_what_a_run_that_lives_needs_is_neither_removed_nor_counted(tmp_path: Path) -> None:
    now_s = time.time()
    entered_from = folder(tmp_path, "eeeeeeee-step7")
    of_the_living = [folder(tmp_path, f"dddddddd-again{n}-step{n}") for n in range(1, 4)]
    ended = [folder(tmp_path, f"0000000{n:x}-step5") for n in range(12)]
    for number, path in enumerate((entered_from, *of_the_living, *ended)):
        written(path, now_s - 10_000 + number)
    sign = LifeSign([tmp_path, tmp_path / "not there"], "dddddddd", Path(entered_from))
    sign.give()
    remove_forgotten([tmp_path], now_s)
    assert [Path(path).exists() for path in (entered_from, *of_the_living)] == [True] * 4
    assert [Path(path).exists() for path in ended] == [False, False] + [True] * 10
    sign.end()
    remove_forgotten([tmp_path], now_s)
    assert [Path(path).exists() for path in (entered_from, *of_the_living)] == [False] * 4


def test_a_sign_of_life_that_nobody_renews_is_believed_for_an_hour(tmp_path: Path) -> None:
    sign = LifeSign([tmp_path], "dddddddd", None)
    sign.give()
    (path,) = tmp_path.iterdir()
    now_s = path.stat().st_mtime
    assert needed(tmp_path, now_s + BELIEVED_S)[0] == {"dddddddd"}
    os.utime(path, (0, 0))
    sign.give()
    assert needed(tmp_path, time.time())[0] == {"dddddddd"}
    assert needed(tmp_path, now_s + 2 * BELIEVED_S)[0] == set()
    assert list(tmp_path.iterdir()) == []


def test_the_checkpoint_that_a_run_is_to_enter_from_outlives_its_own_tidying_up(tmp_path: Path) -> None:
    old = folder(tmp_path / "jit", "eeeeeeee-step7")
    written(old, 1.0)
    for n in range(10):
        folder(tmp_path / "jit", f"0000000{n:x}-step5")
    seen = []

    def tell(follower: JobFollower, options: RunOptions) -> int:
        seen.append((Path(old).exists(), (tmp_path / "jit" / "000000ab.0-lives").exists()))
        say(follower, JobFinished(0, "done"))
        return 0

    run_all(tmp_path, tell, resume=Path(old))
    assert seen == [(True, True)]
    assert not (tmp_path / "jit" / "000000ab.0-lives").exists()


def test_checkpoints_are_found_in_every_folder_in_the_order_in_which_they_were_made(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    newest, oldest = folder(one, "000000ab-again1-step3"), folder(other, "000000ab-step9")
    assert [s.directory for s in own_checkpoints([one, other], "000000ab")] == [oldest, newest]
    remove_old([one, other], "000000ab", 0)
    assert list(tmp_path.iterdir()) == []


def test_a_fault_that_has_struck_strikes_no_second_time() -> None:
    faults = tuple(parse_fault(f"kill:rank=0,step={step}") for step in (5, 5, 6))
    assert faults_left(faults, replace(RunSummary(), faults_injected=(str(faults[0]),))) == faults[1:]


class FakeJob:
    """Tells what `tell` says of its incarnation, and ends with that code."""

    def __init__(self, options: RunOptions, tell: Callable[[RunOptions], int], stopped_by: int) -> None:
        self.stopped_by, self.was_started, self.agent_lost = stopped_by, True, ""
        self._options, self._tell = options, tell
        self.restarts_done = options.restarts_done
        self.rungs_told = 0

    async def run(self, command: tuple[str, ...]) -> int:
        return self._tell(self._options)

    def rungs_changed(self) -> None:
        self.rungs_told += 1


def run_all(
    tmp_path: Path,
    tell: Callable[[JobFollower, RunOptions], int],
    stopped_by: int = 0,
    ended: Callable[[FakeJob], None] = lambda job: None,
    resume: Path | None = None,
) -> tuple[int, Runs, JobFollower, list[RunOptions]]:
    script = tmp_path / "train.py"
    script.touch()
    faults = ("kill:rank=0,step=5", "kill:rank=0,step=6")
    given = GivenOptions(str(script), jit_dirs=(tmp_path / "jit",), inject=faults)
    options = replace(check(given, LocalMachine(), {}), resume=resume)
    follower, seen = JobFollower(Teller(io.StringIO(), {}, True), None), []

    def new_job(these: RunOptions, restarts: tuple[str, ...]) -> FakeJob:
        seen.append(these)
        job = FakeJob(these, lambda its: tell(follower, its), stopped_by)
        ended(job)
        return job

    all_runs = Runs(options, "000000ab", follower, new_job)
    return asyncio.run(all_runs.run(())), all_runs, follower, seen


def say(follower: JobFollower, *occurrences: Occurrence) -> None:
    for number, occurrence in enumerate(occurrences):
        follower.take(to_job_event(occurrence, 1000.0 + number))


def entered(name: str) -> MigrationFinished:
    return MigrationFinished(name, "resume", "committed", -1, "", (0,), ("n0.w0",), 0, {}, 0.0, 0, 1, "")


def test_a_job_goes_on_from_what_was_saved_and_its_checkpoints_are_gone_when_it_succeeds(tmp_path: Path) -> None:
    jit = tmp_path / "jit"

    def tell(follower: JobFollower, options: RunOptions) -> int:
        say(follower, JobStarted("ab", 1, 0, ("n0",)))
        if options.restarts_done:
            say(follower, entered("m1"), JobFinished(0, "done"))
            return 0
        saved = folder(jit, "000000ab-step30")
        say(follower, FaultFired("kill:rank=0,step=5,phase=forward", 0, 5), ProcessRespawned(0, "n0", 4, 1, 3))
        say(
            follower,
            JobFell(0, 75, "killed; a just-in-time checkpoint is in x", 31, False, saved, 30, ""),
            JobFinished(75, "x"),
        )
        return 75

    code, ended, follower, seen = run_all(tmp_path, tell)
    assert (code, ended.no_restart) == (0, "")
    assert [o.resume for o in seen] == [None, jit / "000000ab-step30"]
    assert [len(o.faults) for o in seen] == [2, 1]
    assert [o.respawned_s for o in seen] == [(), ((0, 1001.0),)]
    (restart,) = follower.summary.restarts
    assert (restart.rung, restart.boundary, restart.steps, restart.reason) == ("jit-checkpoint", 30, 0, "killed")
    assert restart.down_s is not None
    assert not jit.exists()


def test_whoever_shows_the_ways_that_were_taken_is_told_when_one_is(tmp_path: Path) -> None:
    def tell(follower: JobFollower, options: RunOptions) -> int:
        lost = MigrationStarted("m1", "unplanned", 0, "killed", 1)
        moved = replace(entered("m1"), kind="unplanned", spares=("n0.r0",))
        say(follower, JobStarted("ab", 1, 0, ("n0",)), lost, PhaseChanged("m1", "fence", 0.1), moved)
        say(follower, JobFinished(0, "done"))
        return 0

    _, ended, _, _ = run_all(tmp_path, tell)
    assert isinstance(ended.job, FakeJob)
    assert ended.job.rungs_told == 1


def test_a_restart_that_nobody_could_enter_from_leads_to_the_next_rung_and_the_end_has_the_first_reason(
    tmp_path: Path,
) -> None:
    def tell(follower: JobFollower, options: RunOptions) -> int:
        say(follower, JobStarted("ab", 1, 0, ("n0",)))
        saved = "" if options.restarts_done else folder(tmp_path / "jit", "000000ab-step30")
        reason = "a joiner failed" if options.restarts_done else "killed"
        say(
            follower,
            JobFell(0, 1, reason, -1, False, saved, 30 if saved else -1, "" if saved else "no"),
            JobFinished(1, reason),
        )
        return 1

    code, ended, follower, seen = run_all(tmp_path, tell)
    assert code == 1
    assert [(r.rung, r.down_s) for r in follower.summary.restarts] == [
        ("jit-checkpoint", None),
        ("script", None),
        ("script", None),
    ]
    assert [o.scripts_begun for o in seen] == [0, 0, 1, 2]
    assert follower.summary.began_with == "killed"
    assert "3 times" in ended.no_restart


@pytest.mark.parametrize(
    ("kills", "fenced", "entered_from"),
    [
        (0, False, ["000000ab-step30", ""]),
        (1, False, ["000000ab-step30", "000000ab-step30", ""]),
        (2, False, ["000000ab-step30", "000000ab-step30", ""]),
        (2, True, ["000000ab-step30", ""]),
    ],
)
def test_a_checkpoint_whose_ranks_something_else_has_ended_is_tried_once_more(
    kills: int, fenced: bool, entered_from: list[str], tmp_path: Path
) -> None:
    def tell(follower: JobFollower, options: RunOptions) -> int:
        say(follower, JobStarted("ab", 1, 0, ("n0",)))
        if options.scripts_begun:
            say(follower, JobFinished(0, "done"))
            return 0
        if not options.restarts_done:
            saved = folder(tmp_path / "jit", "000000ab-step30")
            say(follower, WorkerEnded("n0.w0", 0, 137, 9, False))
            say(follower, JobFell(0, 75, "killed", 30, False, saved, 30, ""), JobFinished(75, "killed"))
            return 75
        if options.restarts_done <= kills:
            say(follower, WorkerEnded("n0.w0", -1, 137, 9, fenced))
        say(follower, JobFell(0, 1, "lost", -1, False, "", -1, "no rank is left"), JobFinished(1, "lost"))
        return 1

    code, _, follower, seen = run_all(tmp_path, tell)
    assert code == 0
    assert [Path(r.directory).name for r in follower.summary.restarts] == entered_from
    assert len(seen) == len(entered_from) + 1


def test_a_controller_that_is_lost_while_ranks_enter_has_them_enter_again(tmp_path: Path) -> None:
    jit = tmp_path / "jit"

    def tell(follower: JobFollower, options: RunOptions) -> int:
        say(follower, JobStarted("ab", 1, 0, ("n0",)))
        if not options.restarts_done:
            saved = folder(jit, "000000ab-step30")
            say(follower, JobFell(0, 75, "killed", 30, False, saved, 30, ""), JobFinished(75, "killed"))
            return 75
        if options.restarts_done == 2:
            say(follower, entered("m2"), JobFinished(0, "done"))
            return 0
        return 1

    def lose(job: FakeJob) -> None:
        job.agent_lost = "its controller was lost" if job.restarts_done == 1 else ""

    code, _, follower, _ = run_all(tmp_path, tell, ended=lose)
    assert code == 0
    first, second = follower.summary.restarts
    assert (first.rung, second.rung) == ("jit-checkpoint", "earlier-checkpoint")
    assert first.directory == second.directory == str(jit / "000000ab-step30")
    assert second.reason == "its controller was lost"


def test_checkpoints_are_removed_when_the_run_has_gone_on_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "OF_USE_S", 0.0)
    jit, seen = tmp_path / "jit", []

    class Trains(FakeJob):
        async def run(self, command: tuple[str, ...]) -> int:
            code = self._tell(self._options)
            for _ in range(100):  # turns of the loop, in which nothing but the removal is due
                await asyncio.sleep(0)
            seen.append(jit.exists())
            return code

    monkeypatch.setattr(sys.modules[__name__], "FakeJob", Trains)

    def tell(follower: JobFollower, options: RunOptions) -> int:
        say(follower, JobStarted("ab", 1, 0, ("n0",)))
        if options.restarts_done:
            say(follower, entered("m1"), JobFinished(1, "stopped"))
            return 1
        saved = folder(jit, "000000ab-step30")
        say(follower, JobFell(0, 75, "killed", 31, False, saved, 30, ""), JobFinished(75, "x"))
        return 75

    run_all(tmp_path, tell, stopped_by=0)
    assert seen == [True, False]


def test_what_the_user_ends_is_not_started_again(tmp_path: Path) -> None:
    def tell(follower: JobFollower, options: RunOptions) -> int:
        say(follower, JobFell(0, 143, "stopped", 3, False, "", -1, "no"), JobFinished(143, "stopped by SIGTERM"))
        return 143

    code, _, follower, seen = run_all(tmp_path, tell, stopped_by=15)
    assert (code, len(seen), follower.summary.restarts) == (143, 1, ())
