"""A training process has ended: replace it, end the job, or is it simply done?"""

from __future__ import annotations

from dataclasses import dataclass

from torchrelay.protocol.words.process_ends import how_ended

IGNORE = "ignore"
DONE = "done"
REPLACE = "replace"
STOP = "stop"


@dataclass(frozen=True)
class Exit:
    """`finishing`: its script had reached its end. `in_migration`: its peers or itself stood still for a migration.

    `unprotected_because`: empty if a lost rank can be replaced.
    """

    worker: str
    rank: int
    exit_code: int
    signal: int
    fenced: bool
    finishing: bool = False
    script_failed: bool = False
    in_migration: bool = False
    unprotected_because: str = ""
    unfit: str = ""
    """Why it has ended itself, where it has said so."""


@dataclass(frozen=True)
class ExitVerdict:
    """`exit_code`: the job's, with `stop`."""

    action: str
    reason: str
    exit_code: int = 0


def classify_exit(e: Exit) -> ExitVerdict:
    who = f"rank {e.rank} ({e.worker})"
    how = _how(e)
    code = 128 + e.signal if e.signal else e.exit_code
    if e.fenced:
        return ExitVerdict(IGNORE, f"{who} was ended by torchrelay")
    if e.script_failed:
        return ExitVerdict(STOP, f"the script failed on {who}, which is no fault of its machine", code or 1)
    if code == 0:
        return ExitVerdict(DONE, f"{who} is done")
    if e.finishing and e.signal:
        return ExitVerdict(DONE, f"{who} {how} after its script had reached its end: nothing is lost")
    if e.finishing:
        return ExitVerdict(STOP, f"{who} {how} while its interpreter was ending", code)
    if e.in_migration:
        # With a peer gone, what ends a rank now is a consequence; a fault of the script comes again afterwards.
        return ExitVerdict(REPLACE, f"{who} {_how(e, ' during a migration')}")
    if not e.signal:
        return ExitVerdict(STOP, f"{who} {how}: that is the script's own doing, a spare would do the same", code)
    if e.unprotected_because:
        return ExitVerdict(STOP, f"{who} {how} and cannot be replaced: {e.unprotected_because}", code)
    return ExitVerdict(REPLACE, f"{who} {how}")


def _how(e: Exit, when: str = "") -> str:
    if e.unfit:
        return f"ended itself{when}: {e.unfit}"
    return f"{how_ended(e.signal, e.exit_code)}{when}"
