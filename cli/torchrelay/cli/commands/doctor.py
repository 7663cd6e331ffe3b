"""`torchrelay doctor`: makes all checks, and says what to do about what is wrong."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TextIO

from rich.text import Text

from torchrelay.cli.command_line.given import GivenOptions
from torchrelay.cli.display import narrate
from torchrelay.cli.display.answers import print_json
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.machine import LocalMachine
from torchrelay.cli.preflight.checks import CHECKS, DOCS, CheckResult, Group, look
from torchrelay.cli.preflight.checks_meet import ChecksWait
from torchrelay.cli.preflight.finding import FindingMark
from torchrelay.cli.preflight.probe import Probe
from torchrelay.cli.preflight.subject import subject_of
from torchrelay.cli.run.checks_host import ChecksHost

EXIT_SOMETHING_IS_WRONG = 1
_STYLES = {FindingMark.WELL: "green", FindingMark.WARNING: "yellow", FindingMark.BAD: "red"}
_PLAIN = {FindingMark.WELL: "ok", FindingMark.WARNING: "!!", FindingMark.BAD: "X"}


@dataclass(frozen=True)
class CheckedJson:
    """What one check has found. `remedy`: what to do about it; `see`: where that is explained."""

    check: str
    group: Group
    mark: FindingMark
    text: str
    remedy: str
    see: str


@dataclass(frozen=True)
class DoctorJson:
    """`torchrelay doctor --json`. `worst`: the worst mark of all."""

    worst: FindingMark
    checks: tuple[CheckedJson, ...]


def doctor(given: GivenOptions, environ: Mapping[str, str], wait_s: float) -> int:
    """Make all checks, print the findings, and return the exit code.

    `given`: the options of the run that the checks are about; its script may be empty. `wait_s`: for the checks of other machines.
    """

    def say(text: str) -> None:
        make_console(sys.stderr).print(narrate.line(text, "dim"))

    wait = ChecksWait(wait_s, ChecksHost(say), say)
    found = look(CHECKS, Probe(environ, wait), subject_of(given, LocalMachine(), environ))
    if given.json_summary:
        print_json(as_json(found))
    else:
        console = make_console(sys.stdout)
        for line in lines(found, plain=not _can_write(sys.stdout, "".join(mark.sign for mark in FindingMark))):
            console.print(line)
    return EXIT_SOMETHING_IS_WRONG if any(f.finding.mark is FindingMark.BAD for f in found) else 0


def lines(found: Sequence[CheckResult], plain: bool = False) -> list[Text]:
    """Return the findings by group, one a line. Below a finding that is not well: what to do, and where that is explained."""
    told: list[Text] = []
    for group, members in itertools.groupby(found, key=lambda f: f.check.group):
        told += [Text(group.value, style="bold"), Text("-" * len(group.value))]
        for each in members:
            mark = each.finding.mark
            told.append(Text.assemble((_PLAIN[mark] if plain else mark.sign, _STYLES[mark]), f" {each.finding.text}"))
            if mark is not FindingMark.WELL:
                told += [Text(f"    {text}") for text in (each.finding.remedy,) if text]
                told.append(Text(f"    see {DOCS}#{each.check.anchor}", style="dim"))
        told.append(Text())
    worst = max((f.finding.mark for f in found), key=list(FindingMark).index, default=FindingMark.WELL)
    told.append(Text(_CONCLUSIONS[worst], style=_STYLES[worst]))
    return told


_CONCLUSIONS = {
    FindingMark.WELL: "all is well",
    FindingMark.WARNING: "jobs run here; something that they may need later does not work",
    FindingMark.BAD: "something is wrong: put it right before you start a job",
}


def as_json(found: Sequence[CheckResult]) -> DoctorJson:
    """Return the findings for JSON, in the order of the checks."""
    worst = max((f.finding.mark for f in found), key=list(FindingMark).index, default=FindingMark.WELL)
    return DoctorJson(worst, tuple(map(_checked, found)))


def _checked(found: CheckResult) -> CheckedJson:
    check = found.check
    finding = found.finding
    see = f"{DOCS}#{check.anchor}"
    return CheckedJson(check.name, check.group, finding.mark, finding.text, finding.remedy, see)


def _can_write(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
