"""The demo's picture: losses, their difference from the undisturbed run, and throughput, with the migrations marked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from demo_runs import Run

mpl.use("Agg")
from matplotlib import pyplot as plt

GREY, BLUE, ORANGE, RED, BROWN = "#9a9a9a", "#1f5fa8", "#d9730d", "#b01818", "#6b4a12"
KINDS = {"planned": "planned move", "kill": "SIGKILL", "stop": "hang"}


@dataclass(frozen=True)
class Mark:
    """A migration: the first step after it, and its downtime in seconds since the epoch."""

    label: str
    step: int
    start_s: float
    end_s: float


def _marks(relay: Run) -> list[Mark]:
    faults = [e for e in relay.events if e["name"] == "fault_injected"]
    found = []
    for event, fault in zip(relay.finished_migrations(), faults, strict=False):
        end_s = event["time_s"]
        start_s = end_s - sum(event["downtime_s"].values())
        step = next((r.step for r in relay.new_steps() if r.unix_time_s >= start_s), relay.rows[-1].step)
        kind = fault["fault"].partition(":")[0]
        found.append(Mark(f"{KINDS.get(kind, kind)}\nrank {event['rank']}", step, start_s, end_s))
    return found


def throughput(run: Run, origin_s: float, bin_s: float = 1.0) -> tuple[Any, Any]:
    """New steps per second in bins of `bin_s` since `origin_s`; a step that is done again is no new one."""
    times = np.array([row.unix_time_s for row in run.new_steps()]) - origin_s
    edges = np.arange(0.0, times[-1] + bin_s, bin_s)
    counts, _ = np.histogram(times, edges)
    return edges, counts / bin_s


def _losses(axis: Any, runs: tuple[Run, Run, Run], marks: list[Mark]) -> None:
    undisturbed, relay, classic = runs
    for run, color, width, label in (
        (undisturbed, GREY, 5.0, "undisturbed"),
        (classic, ORANGE, 1.6, "checkpoint and restart"),
        (relay, BLUE, 1.6, "torchrelay"),
    ):
        steps = [r.step for r in run.rows]
        breaks = [i for i in range(1, len(steps)) if steps[i] <= steps[i - 1]]
        values = [float(r.mean_loss) for r in run.rows]
        for n, (start, end) in enumerate(zip([0, *breaks], [*breaks, len(steps)], strict=True)):
            axis.plot(
                steps[start:end],
                values[start:end],
                color=color,
                lw=width,
                label=None if n else label,
                solid_capstyle="round",
            )
    for mark in marks:
        axis.axvline(mark.step, color=BLUE, lw=0.8, ls=":")
        axis.annotate(
            mark.label,
            (mark.step, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(4, -4),
            textcoords="offset points",
            va="top",
            fontsize=8,
            color=BLUE,
        )
    axis.set_ylabel("loss")
    handles, labels = axis.get_legend_handles_labels()
    order = [labels.index(name) for name in ("undisturbed", "torchrelay", "checkpoint and restart")]
    axis.legend([handles[i] for i in order], [labels[i] for i in order], loc="lower left", fontsize=8, frameon=False)


def _differences(axis: Any, runs: tuple[Run, Run, Run], marks: list[Mark]) -> None:
    undisturbed, relay, classic = runs
    reference = undisturbed.last_losses()
    for run, color, label in ((classic, ORANGE, "checkpoint and restart"), (relay, BLUE, "torchrelay")):
        losses = run.last_losses()
        steps = sorted(losses.keys() & reference.keys())
        off = [abs(float(losses[s][1]) - float(reference[s][1])) for s in steps]
        if not any(off):
            label += ": exactly 0 in every step"
        axis.plot(steps, off, color=color, lw=1.6, label=label)
    for mark in marks:
        axis.axvline(mark.step, color=BLUE, lw=0.8, ls=":")
    axis.set_ylabel("distance of the loss\nfrom undisturbed")
    axis.set_xlabel("step")
    axis.legend(loc="upper left", fontsize=8, frameon=False)


def _span(axis: Any, start_s: float, end_s: float, text: str, color: str) -> None:
    axis.axvspan(start_s, end_s, color=color, alpha=0.22, lw=0)
    axis.annotate(
        text,
        ((start_s + end_s) / 2, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 3),
        textcoords="offset points",
        fontsize=8,
        color=color,
        ha="center",
    )


def _throughputs(axes: Any, runs: tuple[Run, Run, Run], marks: list[Mark], killed_s: float) -> None:
    _, relay, classic = runs
    origins = {run.name: run.rows[0].unix_time_s for run in runs}
    for axis, run, color in zip(axes, runs, (GREY, BLUE, ORANGE), strict=True):
        edges, rate = throughput(run, origins[run.name])
        axis.stairs(rate, edges, color=color, fill=True, alpha=0.75)
        axis.set_ylabel("new steps/s")
        axis.set_title(run.name, loc="left", fontsize=9, color="#333333")
    for mark in marks:
        origin_s = origins[relay.name]
        _span(axes[1], mark.start_s - origin_s, mark.end_s - origin_s, mark.label.replace("\n", ", "), RED)
    again_s = next(r.unix_time_s for r in classic.rows if r.unix_time_s > killed_s)
    new_s = next(r.unix_time_s for r in classic.new_steps() if r.unix_time_s > killed_s)
    origin_s = origins[classic.name]
    _span(axes[2], killed_s - origin_s, again_s - origin_s, "SIGKILL, restart", RED)
    _span(axes[2], again_s - origin_s, new_s - origin_s, "steps done again", BROWN)
    axes[-1].set_xlabel("seconds since the first step")


def draw(undisturbed: Run, relay: Run, classic: Run, killed_s: float, path: Path) -> None:
    """Writes the picture as PNG to `path`."""
    runs, marks = (undisturbed, relay, classic), _marks(relay)
    figure = plt.figure(figsize=(10, 10.5), layout="constrained")
    losses, lower = figure.subfigures(2, 1, height_ratios=[5.5, 5])
    top = losses.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    _losses(top[0], runs, marks)
    _differences(top[1], runs, marks)
    bottom = lower.subplots(3, 1, sharex=True, sharey=True)
    _throughputs(bottom, runs, marks, killed_s)
    for axis in (*top, *bottom):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", color="#e6e6e6", lw=0.6)
        axis.set_axisbelow(True)
    figure.suptitle("One training, three times: the same script with the same seed", fontsize=12)
    figure.align_ylabels([*top, *bottom])
    figure.savefig(path, dpi=120)
    plt.close(figure)
