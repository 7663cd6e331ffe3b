from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console, RenderableType

from torchrelay.cli.display import narrate, render
from torchrelay.cli.display.summary import MigrationSummary, RunSummary, fold
from torchrelay.cli.folders.folder import KnownRun, RungTaken
from torchrelay.protocol import events
from torchrelay.protocol.messages import JobStatus, RankStatus
from torchrelay.protocol.words.level import Level
from torchrelay.protocol.words.phases import DOWNTIME_ROWS
from torchrelay.protocol.words.rank_words import WAITS_FOR_SPARE

KILLED = MigrationSummary(
    migration="m1",
    kind="unplanned",
    ranks=(1,),
    reason="ended by SIGKILL",
    outcome="committed",
    spares=("n0.s0",),
    steps_redone=1,
    downtime_s=dict.fromkeys(DOWNTIME_ROWS, 0.25) | {"checkpoint": 0.0},
    transferred_bytes=3 << 20,
)


HALF = events.MigrationProgressed("m1", "transfer", 1 << 30, 2 << 30, 4.0, float(1 << 28), 4.0)

RUN = KnownRun(
    "1a2b", "1a2b", "127.0.0.1", 1, ("run", "train.py"), (), name="train", working_folder="/data", started_s=1.0
)


def shown(*parts: RenderableType, width: int = 100) -> str:
    buffer = io.StringIO()
    console = Console(file=buffer, width=width, highlight=False)
    for part in parts:
        console.print(part)
    return buffer.getvalue()


def told(event: events.Occurrence, before: RunSummary | None = None, verbose: bool = False) -> str:
    return shown(*narrate.notes(before or RunSummary(), event, verbose)).rstrip()


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (events.JobStarted("ab", 3, 1, ("n0",)), "3 ranks, 1 spare"),
        (
            events.Protection("armed", "the training loop has not come round yet", "set-up"),
            "set-up is done; protection starts with the first step",
        ),
        (
            events.Protection("unprotected", "no loop was found"),
            "warning: not protected: no loop was found\n  a rank that is lost now is not replaced\n"
            "hint: torchrelay status",
        ),
        (
            events.FaultFired("kill:rank=1,step=3,phase=data", 1, 3),
            "fault injected: kill:rank=1,step=3,phase=data",
        ),
        (
            events.MigrationStarted("m1", "unplanned", 1, "ended by SIGKILL", 1),
            "warning: migration m1: rank 1 is lost: ended by SIGKILL",
        ),
        (
            events.MigrationStarted("m1", "unplanned", 1, "rank 1 (n0.w1) was killed by SIGKILL", 1),
            "warning: migration m1: rank 1 (n0.w1) was killed by SIGKILL; it is to be replaced",
        ),
        (
            events.MigrationStarted("m1", "planned", 1, "fan", 1),
            "migration m1: rank 1 is to move: fan",
        ),
        (events.WorkerEnded("n0.w0", 0, 1, 0, False), ""),
        (
            events.NodeLost("n1", (2, 3), 1, "its agent is away"),
            "warning: n1 is lost with ranks 2, 3 and 1 spare: its agent is away",
        ),
        (
            events.ProcessRespawned(1, "n0", 30, 2, 3),
            "  respawn: a new process is started for rank 1 on n0 (2 of 3 within the hour)",
        ),
        (events.NodeLost("n1", (), 2, "silent"), "warning: n1 is lost with 2 spares: silent"),
        (events.JournalsKept(1, "n0", 4, False), ""),
        (events.JournalsKept(1, "n0", 4, True), ""),
        (events.Log("info", "detail"), ""),
        (events.Log("warning", "careful"), "warning: careful"),
        (events.ProgressMade(1, 1.0, 3, 1), ""),
    ],
)
def test_events_are_told_in_one_line_or_not_at_all(event: events.Occurrence, text: str) -> None:
    assert told(event) == text


def test_each_phase_is_told_with_its_own_seconds() -> None:
    before = fold(RunSummary(), events.MigrationStarted("m1", "unplanned", 1, "gone", 1), 0.0)
    first = events.PhaseChanged("m1", "fence", 0.0)
    assert told(first, before, verbose=True) == ""
    second = events.PhaseChanged("m1", "prepare", 0.126)
    assert told(second, fold(before, first, 0.0), verbose=True) == "  fence: 0.13 s"
    assert told(second, fold(before, first, 0.0)) == "", "a detail"


def test_what_was_told_of_one_rank_is_not_repeated_for_the_next() -> None:
    report = events.ReportMade(0, "train.py", 9, 1, 1, 1, ("open file x",), ())
    assert told(report) == "warning: a rank that is replaced goes on without this: open file x"
    assert told(report, fold(RunSummary(), report, 0.0)) == ""


def test_a_quiet_run_ends_with_one_line() -> None:
    summary = RunSummary(world_size=2, protection="on", boundary=60, exit_code=0, started_s=10.0, ended_s=22.5)
    assert shown(*narrate.closing(summary, 0, "", [])) == "done in 12.5 s, 60 steps\n"


def test_migrations_end_in_a_table_of_seconds_by_phase() -> None:
    summary = RunSummary(boundary=60, exit_code=0, started_s=0.0, ended_s=9.0, migrations=(KILLED,))
    assert [text.rstrip() for text in shown(*narrate.closing(summary, 0, "", []), width=80).splitlines()] == [
        "",
        "migration  rank  kind       outcome    spare  redone  moved    reason",
        "m1            1  unplanned  committed  n0.s0       1  3.0 MiB  ended by SIGKILL",
        "",
        "seconds of detect fence prepare quiesce transfer rebuild verify first step  sum",
        "m1           0.25  0.25    0.25    0.25     0.25    0.25   0.25       0.25 2.00",
        "",
        "done in 9.0 s, 60 steps, 1 migration, 1 redone, 2.00 s of downtime",
    ]


def test_several_migrations_get_a_row_with_their_sum() -> None:
    lines = shown(render.migrations_table((KILLED, KILLED))).splitlines()
    assert lines[-1].split() == ["all", *["0.50"] * 8, "4.00"]


def test_the_end_without_a_spare_says_how_to_go_on() -> None:
    command = "torchrelay run --resume /tmp/jit/1 train.py"
    saved = "no spare is left for rank 1; a just-in-time checkpoint is in /tmp/jit/1"
    reason = f"rank 1 was killed; {saved}"
    moved = MigrationSummary("m1", "unplanned", (1,), "rank 1 was killed", outcome="checkpoint", outcome_reason=saved)
    summary = RunSummary(
        exit_code=75, checkpoint="/tmp/jit/1", reason=f"{reason}; go on with: {command}", migrations=(moved,)
    )
    text = shown(*narrate.closing(summary, 75, command, []), width=200)
    assert text.count("no spare is left for rank 1") == text.count("a just-in-time checkpoint is in /tmp/jit/1") == 1
    assert f"{reason}\n" in text
    assert "hint: torchrelay run --resume /tmp/jit/1 train.py" in text


def test_with_several_machines_the_command_of_each_is_told() -> None:
    summary = RunSummary(exit_code=75, checkpoint="/jit/1", reason="lost", resume_commands={"n0": "one", "n1": "two"})
    text = shown(*narrate.closing(summary, 75, "own", []), width=200)
    assert "hint: one  # on n0" in text
    assert "hint: two  # on n1" in text
    assert "own" not in text


def test_faults_that_never_fired_are_named() -> None:
    text = shown(*narrate.closing(RunSummary(exit_code=0), 76, "", ["kill:rank=0,step=99,phase=data"]))
    assert text == "error: the fault kill:rank=0,step=99,phase=data never fired\n"


NOT_MOVED = events.MoveNotMade("m1", 1, "--inject planned:rank=1,step=9,phase=forward", "the spare was not ready")
SAID = (
    "error: the planned migration of rank 1 did not take place "
    "(--inject planned:rank=1,step=9,phase=forward): the spare was not ready\n"
)


def test_a_planned_migration_that_did_not_take_place_is_told_at_the_end_with_its_reason() -> None:
    summary = fold(RunSummary(exit_code=0), NOT_MOVED, 0.0)
    assert shown(*narrate.closing(summary, 76, "", []), width=200) == SAID
    assert shown(*narrate.closing(summary, 0, "", []), width=200).startswith(SAID + "done in")


def test_a_script_that_ends_with_76_by_itself_is_told_as_such() -> None:
    text = shown(*narrate.closing(RunSummary(exit_code=76, reason="rank 0: SystemExit(76)"), 76, "", []))
    assert text == "error: ended with exit code 76: rank 0: SystemExit(76)\n"


def test_a_planned_migration_is_said_to_be_off_as_it_happens_unless_it_was_said_to_be_given_up() -> None:
    assert shown(*narrate.notes(RunSummary(), NOT_MOVED), width=200) == SAID
    begun = fold(RunSummary(), events.MigrationStarted("m1", "planned", 1, "asked for", 1), 0.0)
    assert shown(*narrate.notes(begun, NOT_MOVED), width=200) == SAID
    given_up = replace(begun, migrations=(replace(begun.migrations[0], outcome="abandoned"),))
    assert narrate.notes(given_up, NOT_MOVED) == []


def test_a_failure_is_told_with_its_reason() -> None:
    text = shown(*narrate.closing(RunSummary(exit_code=3, reason="rank 0: SystemExit(3)"), 3, "", []))
    assert text == "error: ended with exit code 3: rank 0: SystemExit(3)\n"


def test_the_live_line_says_what_moves() -> None:
    quiet = RunSummary(ranks=3, spares=1, boundary=120, steps_per_s=8.26)
    assert shown(render.progress_line(quiet)).strip() == "torchrelay  3 ranks · step 120 · 8.3 steps/s · 1 spare"
    waits = replace(quiet, pool=events.SparesChanged(2, 1, 1, ""))
    assert shown(render.progress_line(waits)).strip().endswith("· 1 of 2 spares ready, 1 being made")
    started = fold(quiet, events.MigrationStarted("m1", "unplanned", 1, "gone", 1), 0.0)
    moving = fold(started, events.PhaseChanged("m1", "fence", 0.0), 0.0)
    assert shown(render.progress_line(moving)).strip().endswith("· rank 1 is moving: fence")
    transferring = fold(fold(moving, events.PhaseChanged("m1", "transfer", 0.1), 1.0), HALF, 1.0)
    line = shown(render.progress_line(transferring)).strip()
    assert "step 120 · rank 1 is moving: transfer █████░░░░░ 50 %, 4.0 s left (1.0 GiB" in line
    assert fold(transferring, events.PhaseChanged("m1", "rebuild", 8.0), 2.0).moving is None


def test_lines_tell_how_far_tensors_are_every_five_seconds() -> None:
    summary, told = RunSummary(), []
    for second in range(1, 13):
        event = replace(HALF, elapsed_s=second + 0.2)
        told += [second for _ in narrate.notes(summary, event)]
        summary = fold(summary, event, float(second))
    assert told == [5, 10]


def test_status_shows_job_and_ranks() -> None:
    status = JobStatus(
        run_id="1a2b",
        world_size=2,
        generation=1,
        spares_warm=1,
        spares_total=2,
        protection="unprotected",
        protection_reason="no spare is there",
        steps_per_s=4.0,
        migrations_done=1,
        last_migration="m1: rank 1 moved to n0.s0",
        ranks=(
            RankStatus(0, "n0.w0", "n0", 4711, 30, "body", "running"),
            RankStatus(1, "n0.s0", "n0", 4712, -1, "set-up", "starting"),
        ),
    )
    assert [text.rstrip() for text in shown(render.status_view(status, RUN), width=80).splitlines()] == [
        "job         1a2b train",
        "folder      /data",
        f"started     {render.clock(1.0)}",
        "ranks       2, generation 1, 4.0 steps/s",
        "spares      1 ready of 2",
        "protection  not protected: no spare is there",
        "migrations  1; last: m1: rank 1 moved to n0.s0",
        "",
        "rank  worker  node   pid  step  phase   state",
        "   0  n0.w0   n0    4711    30  body    running",
        "   1  n0.s0   n0    4712     -  set-up  starting",
    ]


def test_status_counts_the_ways_that_were_taken_after_losses_with_their_cost() -> None:
    status = JobStatus("1a2b", 2, 1, 1, 1, "protected", "", 4.0, 0, "", ())
    taken = (RungTaken("respawn", 2, 1, 3.21), RungTaken("copies", 1, 8, 0.5))
    run = replace(RUN, rungs=taken, restarts=("1 (jit-checkpoint): at step 3, 0 steps lost, 2.0 s: killed",))
    lines = [" ".join(text.split()) for text in shown(render.status_view(status, run), width=120).splitlines()]
    at = lines.index("rungs respawn: 2 times, 1 step done again, 3.2 s")
    assert lines[at + 1] == "copies: 1 time, 8 steps done again, 0.5 s"
    assert lines[at + 2] == "restarts 1 (jit-checkpoint): at step 3, 0 steps lost, 2.0 s: killed"


def test_the_end_has_a_table_of_the_ways_that_were_taken_beyond_spares() -> None:
    respawned = replace(KILLED, migration="m2", spares=("n0.r0",))
    text = shown(*narrate.closing(RunSummary(exit_code=0, migrations=(KILLED, respawned)), 0, "", []), width=100)
    rows = [line.split() for line in text.splitlines()]
    at = rows.index(["rung", "times", "redone", "seconds"])
    assert rows[at + 1 : at + 3] == [["next-spare", "1", "1", "2.00"], ["respawn", "1", "1", "2.00"]]


@pytest.mark.parametrize(
    ("moves", "reason", "row"),
    [
        (0, "", ""),
        (0, "all ranks are on n0", "machines all ranks are on n0"),
        (2, "", "machines 2 ranks moved to another machine for the job's protection"),
        (
            1,
            "rank 3 is to move",
            "machines 1 rank moved to another machine for the job's protection; rank 3 is to move",
        ),
    ],
)
def test_status_says_which_ranks_move_to_another_machine(moves: int, reason: str, row: str) -> None:
    status = JobStatus("1a2b", 2, 1, 1, 2, "partly", "", 4.0, 0, "", (), ranks_spread=moves, spread_reason=reason)
    lines = [" ".join(text.split()) for text in shown(render.status_view(status, RUN), width=120).splitlines()]
    assert [text for text in lines if text.startswith("machines")] == [row] * bool(row)


@pytest.mark.parametrize(
    ("action", "outcome", "said"),
    [
        ("replace", "done", "warning: rank 1 is to be replaced: XID 79 on GPU-a: gone"),
        ("migrate", "observed", "warning: torchrelay only observes, and would migrate rank 1: XID 79 on GPU-a: gone"),
        ("ignore", "told", ""),
    ],
)
def test_a_verdict_about_a_device_is_told_unless_nothing_follows_from_it(action: str, outcome: str, said: str) -> None:
    event = events.HealthVerdict(action, "xid-79", "n0", "GPU-a", (1,), outcome, "device", "XID 79 on GPU-a: gone")
    texts = [text.plain for text in narrate.notes(RunSummary(), event)]
    assert "".join(texts[:1]) == said
    follows = ["  GPU-a is given no rank from now on", "hint: torchrelay quarantine clear GPU-a --reason repaired"]
    assert texts[1:] == [text for text in follows if outcome == "done"]


def test_a_roll_back_is_told_as_one() -> None:
    begun = told(events.MigrationStarted("m1", "rollback", 1, "gone", 2))
    assert begun.endswith("nobody holds what rank 1 had; all ranks go back to their copies")
    done = events.MigrationFinished(
        "m1", "rollback", "committed", 1, "s0", (0, 1), ("r0", "s0"), 4, {"prepare": 2.5}, 0.0, 10, 2, "done"
    )
    said, hint = told(done).splitlines()
    assert said.endswith("all ranks went back to their copies: 4 steps redone, 2.50 s of downtime")
    assert hint == "hint: torchrelay explain m1"


@pytest.mark.parametrize(
    ("pool", "hint"),
    [
        (None, "spares add 1"),
        (events.SparesChanged(1, 0, 0, ""), "spares add 1"),
        (events.SparesChanged(1, 0, 0, "new ones are not made (--no-refill)"), "status"),
    ],
)
def test_more_spares_are_proposed_where_they_would_be_made(pool: events.SparesChanged | None, hint: str) -> None:
    before = RunSummary(run_id="1a2b", pool=pool)
    text = told(events.Protection("partly", "no spare is there", "no-spare"), before)
    assert text.endswith(f"hint: torchrelay {hint} --run 1a2b")


def test_a_reason_is_not_told_again_when_only_its_numbers_change() -> None:
    before = RunSummary(protection=Level.PARTLY, protection_reason="copies are made every 22 steps")
    assert told(events.Protection("partly", "copies are made every 27 steps"), before) == ""
    assert "every 27 steps" in told(events.Protection("partly", "saves are made every 27 steps"), before)
    assert "every 27 steps" in told(events.Protection("unprotected", "copies are made every 27 steps"), before)


def test_a_run_that_is_stopped_says_where_and_what_is_saved() -> None:
    assert shown(narrate.stopped(RunSummary(boundary=60), 2)) == (
        "stopped by SIGINT after step 60; nothing was saved\n"
    )
    assert "before the first step" in shown(narrate.stopped(RunSummary(), 15))
    asked = fold(RunSummary(boundary=60), events.JobFinished(143, "stopped by SIGTERM", "alice"), 1.0)
    assert "stopped by SIGTERM (asked for by alice) after step 60" in shown(narrate.closing(asked, 143, "", [])[0])
    saved = RunSummary(boundary=60, checkpoint="/jit/1")
    assert "the newest checkpoint of torchrelay is in /jit/1" in shown(narrate.stopped(saved, 2))


def test_a_job_that_somebody_stops_did_not_fail() -> None:
    summary = RunSummary(boundary=60, exit_code=143, reason="stopped by SIGTERM")
    assert shown(*narrate.closing(summary, 143, "", [])) == "stopped by SIGTERM after step 60; nothing was saved\n"
    crashed = replace(summary, exit_code=139, reason="rank 0 was killed by SIGSEGV")
    assert "error: ended with exit code 139" in shown(*narrate.closing(crashed, 139, "", []))


def test_a_run_that_nobody_keeps_has_no_story_to_go_back_to() -> None:
    lost = events.MigrationFinished(
        "m1",
        "unplanned",
        "committed",
        1,
        "n0.s0",
        (1,),
        ("n0.s0",),
        1,
        {},
        0.0,
        0,
        1,
        "every rank has done a step since",
    )
    assert "hint: torchrelay explain m1" in told(lost)
    assert "hint:" not in told(lost, RunSummary(is_kept=False))


@pytest.mark.parametrize(
    ("style", "text", "line"),
    [
        ("red", "it is lost", "error: it is lost"),
        ("yellow", "it is late", "warning: it is late"),
        ("green", "it is there", "it is there"),
        ("yellow", "  of the line before", "  of the line before"),
    ],
)
def test_what_a_pipe_does_not_show_by_colour_is_said(style: str, text: str, line: str) -> None:
    assert narrate.line(text, style).plain == line


def test_a_move_that_waits_for_a_spare_is_no_error_and_is_forgotten_once_it_is_made() -> None:
    waits = events.MoveNotMade("", 1, "the fan is loud", f"there is no spare; {WAITS_FOR_SPARE}")
    assert told(waits).startswith("warning: rank 1 is to move (the fan is loud), and waits: there is no spare")
    made = fold(RunSummary(), events.MigrationStarted("m1", "planned", 1, "the fan is loud", 1), 0.0)
    done = events.MigrationFinished(
        "m1",
        "planned",
        "committed",
        1,
        "n0.s0",
        (1,),
        ("n0.s0",),
        0,
        dict.fromkeys(DOWNTIME_ROWS, 0.1),
        0.0,
        1,
        1,
        "so",
    )
    made = fold(fold(made, waits, 1.0), done, 2.0)
    assert made.moves_not_made == ()
