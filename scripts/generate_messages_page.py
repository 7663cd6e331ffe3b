"""Writes the messages of docs/messages.md as the commands print them; `--check` only says whether they are up to date."""

from __future__ import annotations

import io
import sys
from dataclasses import dataclass, replace

from generated_part import GeneratedPart
from messages_in_code import answers, elsewhere, refusals
from rich.console import Console

from torchrelay.cli.display import narrate
from torchrelay.cli.display.summary import MigrationSummary, RunSummary, fold
from torchrelay.cli.display.teller import among_others
from torchrelay.protocol import events as e
from torchrelay.protocol.words.causes import MigrationCause, ProtectionCause
from torchrelay.protocol.words.level import Level
from torchrelay.protocol.words.order_words import JOIN, could_not
from torchrelay.protocol.words.phases import DOWNTIME_ROWS
from torchrelay.protocol.words.rank_words import WAITS_FOR_SPARE
from torchrelay.protocol.words.rehearsal_words import REHEARSAL_DIFFERS, REHEARSAL_FAILED, REHEARSAL_SAME

RUN = "5b69072e"
STACK = ("train.py:41 in read_batch", "train.py:88 in main")
DOWNTIME_S = dict.fromkeys(DOWNTIME_ROWS, 0.1) | {"checkpoint": 0.0}
RESUME_COMMAND = "torchrelay run --resume torchrelay-jit/5b69072e-step30 --nproc-per-node 2 train.py"


@dataclass(frozen=True)
class Example:
    """Events in their order, of which the last one is told; `when` says what they mean."""

    when: str
    told: tuple[e.Occurrence, ...]


def finished(kind: str, outcome: str = "committed", redone: int = 0, reason: str = "") -> e.MigrationFinished:
    return e.MigrationFinished(
        migration="m1",
        kind=kind,
        outcome=outcome,
        rank=1,
        spare="n0.s0",
        ranks=(1,),
        spares=("n0.s0",) if outcome == "committed" else (),
        steps_redone=redone,
        downtime_s=DOWNTIME_S,
        beside_s=0.0,
        transferred_bytes=1 << 20,
        generation=1,
        reason=reason,
    )


def verdict(action: str, outcome: str, quarantine: str = "no") -> e.HealthVerdict:
    seen = "XID 79 on GPU-5d0a: GPU has fallen off the bus"
    return e.HealthVerdict(action, "xid-79", "n0", "GPU-5d0a", (1,), outcome, quarantine, seen)


STARTED = e.MigrationStarted(
    "m1", "unplanned", 1, "rank 1 (n0.w1) was killed by SIGKILL", 1, MigrationCause.PROCESS.value
)
MOVES = e.MigrationStarted("m1", "planned", 1, "the fan is loud", 1, MigrationCause.ASKED.value, "alice")
SAVES = e.MigrationStarted("m1", "save", -1, "before the maintenance", 1, MigrationCause.ASKED.value, "alice")
WHERE = "the checkpoint of step 64 is in torchrelay-jit/5b69072e-step64-asked"
TRANSFERRED = e.MigrationProgressed("m1", "transfer", 9 << 30, 24 << 30, 5.0, 1.8 * (1 << 30), 8.3)
NO_SPARE = "no spare is there, so a lost rank ends the job in a just-in-time checkpoint"
SPARES = e.SparesChanged(1, 0, 1, "")
REHEARSED = e.RehearsalFinished(1, 2, 40, "n0.s0", REHEARSAL_SAME, "", (), 3.0)
FAILS = could_not("n0.s0", 1, JOIN, "made by training, and cannot be made again: 'TMonitor' (tqdm)")

EXAMPLES: dict[str, tuple[Example, ...]] = {
    "Start and protection": (
        Example("all processes are there", (e.JobStarted(RUN, 2, 1, ("n0",)),)),
        Example("set-up is over", (SPARES, e.Protection("armed", "", ProtectionCause.SET_UP.value))),
        Example(
            "any rank can be replaced",
            (e.Protection("protected", "any rank can be replaced, at any moment of a step"),),
        ),
        Example(
            "a spare has just been used",
            (
                e.Protection(
                    "protected",
                    "any rank can be replaced, at any moment of a step; "
                    "a rank that is lost now waits for the spare that is being made",
                ),
            ),
        ),
        Example("nobody could take over", (e.Protection("partly", NO_SPARE, ProtectionCause.NO_SPARE.value),)),
        Example(
            "the script stands in the way",
            (e.Protection("unprotected", "no loop was found", ProtectionCause.GAPS.value),),
        ),
        Example("a part of the state", (e.ReportMade(0, "train.py", 9, 1, 1, 1, ("an open file: log.txt",), ()),)),
        Example("a rehearsal went well", (REHEARSED,)),
        Example(
            "a rehearsal found a difference",
            (
                replace(
                    REHEARSED,
                    outcome=REHEARSAL_DIFFERS,
                    reason="seed of the loader",
                    gaps=({"file": "train.py", "line": 12},),
                ),
            ),
        ),
        Example("a rehearsal failed", (replace(REHEARSED, outcome=REHEARSAL_FAILED, reason="no port is free"),)),
    ),
    "A rank is lost, and replaced": (
        Example("a process died", (STARTED,)),
        Example(
            "a rank seems to hang",
            (e.Suspected(1, "it has not moved for 5 s, and the others wait", "rank 0: in a gate", STACK),),
        ),
        Example("what a spare could not do (with `--verbose`)", (STARTED, e.Decision("m1", FAILS))),
        Example(
            "a phase is over (with `--verbose`)",
            (STARTED, e.PhaseChanged("m1", "prepare", 0.0), e.PhaseChanged("m1", "quiesce", 1.1)),
        ),
        Example("much is handed over, each 5 s (on a terminal a bar shows it)", (STARTED, TRANSFERRED)),
        Example("a spare has taken over", (STARTED, finished("unplanned", redone=1))),
        Example("without a spare, a process is started for it", (STARTED, e.ProcessRespawned(1, "n0", 30, 1, 3))),
        Example("nobody held its tensors", (replace(STARTED, kind="rollback"),)),
        Example("all went back to copies", (STARTED, finished("rollback", redone=8))),
        Example("it moved again", (finished("unplanned", "cleared"),)),
        Example("nobody could take over", (STARTED, finished("unplanned", "checkpoint"))),
        Example("nothing could be saved either", (STARTED, finished("unplanned", "abandoned", reason="no room"))),
        Example(
            "machines differ in what the script imports",
            (
                e.FilesDiffer(
                    ("n0", "n1"), "of what the script imports from its folder config.py is not the same on n0 and n1"
                ),
            ),
        ),
        Example("a machine is gone", (e.NodeLost("n1", (2, 3), 1, "its agent is away for 20 s"),)),
        Example(
            "a promise was not kept",
            (e.IncidentKept("m1", "torchrelay-incidents/5b69072e-m1", "protected", "any rank", "no room"),),
        ),
        Example("the controller has changed", (e.TakenOver("", "the one before was ended by SIGKILL"),)),
    ),
    "A rank is moved": (
        Example("somebody asked for it", (MOVES,)),
        Example("it is done", (MOVES, finished("planned"))),
        Example("it was given up", (MOVES, finished("planned", "abandoned", reason="the spare was lost"))),
        Example(
            "it waits for a spare",
            (e.MoveNotMade("", 1, "the fan is loud", f"there is no spare to move it to; {WAITS_FOR_SPARE}"),),
        ),
        Example("it never began", (e.MoveNotMade("", 1, "the fan is loud", "there is no spare to move it to"),)),
    ),
    "A checkpoint is asked for": (
        Example("all are to save", (SAVES,)),
        Example(
            "it is saved",
            (SAVES, replace(finished("save", "saved", reason=WHERE), ranks=(), downtime_s={"checkpoint": 0.4})),
        ),
        Example("nothing was saved", (SAVES, replace(finished("save", "abandoned", reason="no room"), ranks=()))),
    ),
    "Spares": (
        Example("one is made (with `--verbose`)", (e.SpareMade("n0.s1", "n0", "n0.w1"),)),
        Example("one is made because somebody asked (with `--verbose`)", (e.SpareMade("n0.s2", "n0", ""),)),
        Example("somebody asked for more", (e.SparesAsked(2, "", 3, "alice"),)),
        Example("one came to nothing", (e.SpareDropped("n0.s1", "it has ended by itself"),)),
        Example(
            "there are too few",
            (e.SparesChanged(2, 1, 0, "no place is free for one: n0: each of its GPUs has a process"),),
        ),
    ),
    "Devices": (
        Example("a fault is judged", (verdict("replace", "done", "device"),)),
        Example("the same with `--observe`", (verdict("replace", "observed", "device"),)),
        Example("nothing can be done", (verdict("migrate", "refused"),)),
        Example("it may be used again", (e.QuarantineCleared("GPU-5d0a", "repaired"),)),
        Example("a fault of `--inject` strikes", (e.FaultFired("kill:rank=1,step=30,phase=backward", 1, 30),)),
    ),
    "All processes start anew": (
        Example(
            "from a checkpoint",
            (
                e.JobRestarted(
                    1,
                    "jit-checkpoint",
                    "torchrelay-jit/5b69072e-step30",
                    30,
                    0,
                    "rank 1 was lost, and no spare is left",
                    (),
                ),
            ),
        ),
        Example("all train again", (e.RestartDone(1, 21.5),)),
        Example(
            "ranks enter", (e.MigrationStarted("m1", "resume", -1, "resumes from torchrelay-jit/5b69072e-step30", 1),)
        ),
        Example("all have entered", (finished("resume"),)),
    ),
    "Anything else": (Example("a warning", (e.Log("warning", "the agent of n1 is away"),)),),
}

_MOVED = MigrationSummary(
    "m1",
    "unplanned",
    (1,),
    "killed by SIGKILL",
    outcome="committed",
    spares=("n0.s0",),
    steps_redone=1,
    downtime_s=DOWNTIME_S,
)
_RUN = RunSummary(run_id=RUN, protection=Level.PROTECTED, boundary=60, exit_code=0, started_s=0.0, ended_s=12.5)
_SAVED = replace(
    _RUN,
    exit_code=75,
    checkpoint="torchrelay-jit/5b69072e-step30",
    reason="rank 1 was killed by SIGKILL; no spare is left for rank 1",
)
ENDS: dict[str, list[object]] = {
    "it went through": narrate.closing(_RUN, 0, "", []),
    "the same, with a loss on the way": narrate.closing(replace(_RUN, migrations=(_MOVED,)), 0, "", []),
    "no rank could take over": narrate.closing(_SAVED, 75, RESUME_COMMAND, [], "--max-restarts 0"),
    "the script failed": narrate.closing(replace(_RUN, reason="the script failed on rank 0: ValueError: x"), 1, "", []),
    "a fault of `--inject` did not strike": narrate.closing(_RUN, 76, "", ["kill:rank=0,step=99,phase=data"]),
    "Ctrl-C": [narrate.stopped(_RUN, 2)],
}


def lines_of(example: Example) -> list[str]:
    """Return what the command prints about the example's last event."""
    summary = RunSummary(run_id=RUN)
    for event in example.told[:-1]:
        summary = fold(summary, event, 0.0)
    return printed(narrate.notes(summary, example.told[-1], verbose="--verbose" in example.when))


def printed(parts: list[object]) -> list[str]:
    console = Console(file=io.StringIO(), width=100, soft_wrap=True, highlight=False)
    for part in parts:
        console.print(among_others(part))
    assert isinstance(console.file, io.StringIO)
    return [text.rstrip() for text in console.file.getvalue().splitlines()]


def block(when: str, lines: list[str]) -> list[str]:
    return [f"{when[0].upper()}{when[1:]}:", "", "```text", *lines, "```", ""]


def sections() -> str:
    text: list[str] = []
    for heading, examples in EXAMPLES.items():
        text += [f"## {heading}", ""]
        for example in examples:
            text += block(example.when, lines_of(example))
    text += ["## The end of a run", ""]
    for when, parts in ENDS.items():
        text += block(when, printed(parts))
    return "\n".join([*text, answers(), refusals(), elsewhere()])


PART = GeneratedPart("docs/messages.md", "messages", "generate_messages_page.py", sections)


if __name__ == "__main__":
    sys.exit(PART.main(__doc__))
