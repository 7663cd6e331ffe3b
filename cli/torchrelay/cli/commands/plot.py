"""`torchrelay plot`: what happened to a run as one picture, from its event file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from torchrelay.cli.display import narrate
from torchrelay.cli.display.teller import make_console
from torchrelay.dashboard import story, words
from torchrelay.dashboard.event_lines import EventLines
from torchrelay.dashboard.headline import headline
from torchrelay.dashboard.record import RunRecord
from torchrelay.dashboard.run_facts import MigrationRecord
from torchrelay.protocol.errors import UserError

SHOWN = 20
"""Of the migrations, the newest."""
COLORS = {
    "beside": "#c7ccd1",
    "detect": "#b5534a",
    "fence": "#8c6a9a",
    "prepare": "#4d7fb8",
    "quiesce": "#8fb0d3",
    "transfer": "#2e8f84",
    "rebuild": "#7fae66",
    "verify": "#c3b24a",
    "first_step": "#d8944a",
    "checkpoint": "#7c5c43",
}
GREEN = "#2c7a58"
AMBER = "#e3b04b"


def plot(events: Path, out: Path) -> int:
    """Draw steps over time with each standstill, and a bar of phases for each migration. Raises UserError."""
    record = EventLines(events).read_all()
    if not record.line.points:
        raise UserError(f"{events}: the run did no step, so there is nothing to draw")
    try:
        import matplotlib as mpl
    except ImportError as e:
        raise UserError(f"torchrelay plot needs matplotlib ({e}): pip install 'torchrelay[demo]'") from e
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    moves = list(record.migrations.values())[-SHOWN:]
    height = 3.4 + (1.0 + 0.34 * len(moves) if moves else 0.0)
    figure, axes = plt.subplots(
        2 if moves else 1, 1, figsize=(10, height), layout="constrained", squeeze=False, height_ratios=_ratios(moves)
    )
    _steps(axes[0][0], record)
    if moves:
        _phases(axes[1][0], record, moves)
    head = headline(record, record.newest_s)
    figure.suptitle(f"run {record.run_id}: {head.text}", fontsize=12, x=0.01, ha="left")
    try:
        figure.savefig(out, dpi=130)
    except (OSError, ValueError) as e:  # ValueError: no kind of picture has such a name
        raise UserError(f"-o {out}: {e}") from e
    finally:
        plt.close(figure)
    make_console(sys.stderr).print(narrate.line(f"the picture of run {record.run_id} is in {out}"))
    return 0


def _ratios(moves: list[MigrationRecord]) -> list[float]:
    return [3.4, 1.0 + 0.34 * len(moves)] if moves else [1.0]


def _steps(axis: Any, record: RunRecord) -> None:
    points = record.line.points
    axis.plot([t - record.started_s for t, _ in points], [step for _, step in points], color=GREEN, lw=1.8)
    for m in record.migrations.values():
        if m.ended_s is not None and m.downtime_s:
            end_s = m.ended_s - record.started_s
            axis.axvspan(end_s - m.downtime_s, end_s, color=AMBER, alpha=0.5, lw=0.8)
    axis.set_ylabel("steps done")
    axis.set_xlabel("seconds since the job started")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#e6e6e6", lw=0.6)


def _phases(axis: Any, record: RunRecord, moves: list[MigrationRecord]) -> None:
    named: set[str] = set()
    for row, m in enumerate(moves):
        left = 0.0
        for part in story.bar(m, record.newest_s):
            label = "" if part.row in named else part.name
            named.add(part.row)
            axis.barh(row, part.seconds, left=left, color=COLORS[part.row], height=0.62, label=label or None)
            left += part.seconds
        axis.text(left, row, f" stood still {words.duration(m.downtime_s)}", va="center", fontsize=8, color="#5c666d")
    axis.set_yticks(range(len(moves)), [story.title(m) for m in moves], fontsize=8)
    axis.invert_yaxis()
    axis.margins(x=0.15)
    axis.set_xlabel("seconds of each migration")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    axis.legend(
        loc="upper center", bbox_to_anchor=(0.4, -0.5 if len(moves) < 4 else -0.2), ncols=5, fontsize=7, frameon=False
    )
