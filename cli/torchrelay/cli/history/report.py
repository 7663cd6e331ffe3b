"""`torchrelay report`: what protection cost and saved, as text, Markdown or JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from pathlib import Path

from rich.table import Table
from rich.text import Text

from torchrelay.cli.command_line.times import time_s
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.history import cost_picture
from torchrelay.cli.history.cost import HOUR_S, Assumed, CostReport, FaultCost, cost_report
from torchrelay.cli.history.find import find_record
from torchrelay.dashboard import words
from torchrelay.protocol.errors import UserError

NOT_KNOWN = "not known: the controller that led this job is too old to say it"
_COLUMNS = ("fault", "kind", "what came of it", "stood still", "steps redone", "reason")


class ReportForm(str, Enum):
    """How the report is printed."""

    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"


def which_form(text: str, as_json: bool = False) -> ReportForm:
    """Return the form of --format, or of --json, which means `--format json`. Raises UserError for an unknown form."""
    if as_json:
        text = ReportForm.JSON.value
    forms = [each.value for each in ReportForm]
    if text not in forms:
        raise UserError(f"--format {text}: give one of {', '.join(forms)}")
    return ReportForm(text)


def what_is_assumed(checkpoint_every: str, restart: str) -> Assumed:
    """Read the options as they were typed. Raises UserError if one is no time."""
    return Assumed(time_s("--checkpoint-every", checkpoint_every), time_s("--restart", restart))


async def report(wanted: str | None, assumed: Assumed, form: ReportForm, picture: Path | None = None) -> int:
    """Print the report of a run. Raises UserError if there is no such run."""
    show(cost_report(await find_record(os.environ, wanted), time.time(), assumed), form, picture=picture)
    return 0


def show(told: CostReport, form: ReportForm, noun: str = "Run", picture: Path | None = None) -> None:
    """Print the report, and draw it if `picture` names a file. `noun`: what it is about. Raises UserError."""
    if picture is not None:
        cost_picture.draw(told, picture)
    if form is ReportForm.JSON:
        print(json.dumps({**asdict(told), "saved_device_h": told.saved_device_h}))
    elif form is ReportForm.MARKDOWN:
        print(as_markdown(told, noun))
    else:
        console = make_console(sys.stdout)
        console.print(Text(f"{noun} {told.run_id}", style="bold"))
        for what, value in facts(told):
            console.print(Text(f"  {what}: {value}"))
        if told.faults:
            table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
            for name in _COLUMNS:
                table.add_column(name, justify="right" if name in ("stood still", "steps redone") else "left")
            for fault in told.faults:
                table.add_row(*map(Text, _row(fault)))
            console.print()
            console.print(table)
        for text in told.not_protected:
            console.print(Text(f"  not protected: {text}", style="yellow"))


def facts(told: CostReport) -> list[tuple[str, str]]:
    """Return what the report says in sentences: a name and a value each."""
    per_loss = words.duration(told.assumed.per_loss_s)
    paid = "saved" if told.saved_device_h >= 0 else "cost more than it saved"
    return [
        ("ranks", f"{told.ranks:,}"),
        ("steps", f"{told.steps:,} in {words.duration(told.wall_s)}"),
        (
            "goodput",
            NOT_KNOWN if told.goodput is None else f"{words.percent(told.goodput)} of the time since the start",
        ),
        ("losses survived", f"{told.losses_survived}; planned moves: {told.moves_done}"),
        (
            "lost to them",
            f"{hours(told.lost_device_h)} of all ranks: training stood still for {words.duration(told.standstill_s)}, "
            f"and {_redone(told)}",
        ),
        ("spares", f"{hours(told.spare_device_h)} of waiting"),
        (
            "restarts from a checkpoint",
            f"{hours(told.restart_device_h)} of all ranks, at {per_loss} for each (a checkpoint every "
            f"{words.duration(told.assumed.checkpoint_every_s)}, a restart of {words.duration(told.assumed.restart_s)}: assumed)"
            f"{_counted(told)}",
        ),
        (paid, hours(abs(told.saved_device_h))),
    ]


def _counted(told: CostReport) -> str:
    if not told.counted_from_saved:
        return ""
    return f"; {told.counted_from_saved} of them from a checkpoint that was saved before"


def _redone(told: CostReport) -> str:
    if told.redone_s is not None:
        return f"{words.duration(told.redone_s)} of steps were done again"
    if not (steps := sum(fault.steps_redone for fault in told.faults)):
        return "no step was done again"
    return f"{words.count(steps, 'step')} done again, whose time is not known and not counted"


def hours(device_h: float) -> str:
    """Return `3.2 device-hours`, `4.0 device-minutes`, `0.8 device-seconds`."""
    for unit_h, unit in ((1.0, "hours"), (1 / 60, "minutes")):
        if device_h >= unit_h:
            return f"{device_h / unit_h:.1f} device-{unit}"
    return f"{device_h * HOUR_S:.1f} device-seconds"


def as_markdown(told: CostReport, noun: str = "Run") -> str:
    """Return the report as a page."""
    lines = [f"# {noun} {told.run_id}", "", *_table(("", ""), facts(told))]
    if told.faults:
        lines += ["", "## Faults", "", *_table(_COLUMNS, [_row(fault) for fault in told.faults])]
    if told.not_protected:
        lines += ["", "## Not protected", "", *(f"- {text}" for text in told.not_protected)]
    return "\n".join(lines)


def _row(fault: FaultCost) -> tuple[str, ...]:
    stood = words.duration(fault.downtime_s)
    return fault.name, fault.what, fault.outcome, stood, str(fault.steps_redone), fault.reason


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return [line(header), line(["---"] * len(header)), *map(line, rows)]
