"""Plays a failure trace against numbers of spares and ways to answer, and says what pays."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from torchrelay.cli.display.teller import make_console
from torchrelay.cli.spare_plan.trace import HOUR_S, ClusterSite, draw_trace
from torchrelay.cli.spare_plan.ways import PlayedTrace, Way, WayCosts, play
from torchrelay.protocol.errors import UserError

DAY_S = 86_400.0


@dataclass(frozen=True)
class SparePlanOptions:
    """The command line. `spares`: numbers of GPUs that stand by, to be compared; empty: some that suit the cluster.

    `traces`: how many are drawn.
    """

    site: ClusterSite
    costs: WayCosts
    days: float
    spares: tuple[int, ...]
    traces: int
    seed: int
    out: Path | None
    picture: Path | None


@dataclass(frozen=True)
class ComparedWay:
    """Means over all traces, and the spread of goodput between them."""

    way: Way
    spares: int
    effective: float
    goodput: float
    spread: float
    waited_hours: float
    lost_hours: float


def plan_spares(options: SparePlanOptions) -> int:
    """Compare, print and draw. Raises UserError for numbers that make no sense."""
    _check(options)
    rows, failures = compare(options)
    console = make_console(sys.stdout)
    _print(console, options, rows, failures)
    if options.out is not None:
        told = {"options": _told(options), "failures": failures, "rows": [asdict(row) for row in rows]}
        options.out.write_text(json.dumps(told, indent=1) + "\n")
    if options.picture is not None:
        _draw(options.picture, options, rows)
    return 0


def compare(options: SparePlanOptions) -> tuple[list[ComparedWay], float]:
    """Return a row for each way and number of spares, and how many failures a trace has. Pure."""
    horizon_s = options.days * DAY_S
    traces = [draw_trace(options.site, horizon_s, options.seed + n) for n in range(options.traces)]
    rows = []
    for way in Way:
        for spares in (0,) if way is Way.PREEMPT else _numbers(options):
            outcomes = [play(way, spares, trace, options.site, options.costs, horizon_s) for trace in traces]
            rows.append(_row(outcomes))
    return rows, statistics.fmean(len(trace) for trace in traces)


def best(rows: Sequence[ComparedWay], way: Way) -> ComparedWay:
    return max((row for row in rows if row.way is way), key=lambda row: row.goodput)


def _row(outcomes: Sequence[PlayedTrace]) -> ComparedWay:
    first = outcomes[0]
    goodputs = [o.goodput for o in outcomes]
    return ComparedWay(
        first.way,
        first.spares,
        statistics.fmean(o.effective for o in outcomes),
        statistics.fmean(goodputs),
        statistics.pstdev(goodputs),
        statistics.fmean(o.waited_s for o in outcomes) / HOUR_S,
        statistics.fmean(o.lost_s for o in outcomes) / HOUR_S,
    )


def _numbers(options: SparePlanOptions) -> tuple[int, ...]:
    """Return numbers of spares by nodes: none, one, two, four, and so on up to an eighth of the cluster."""
    if options.spares:
        return options.spares
    node = options.site.gpus_per_node
    most = max(options.site.gpus // 8, options.site.gpus_per_node)
    numbers = [0]
    nodes = 1
    while nodes * node <= most:
        numbers.append(nodes * node)
        nodes *= 2
    return tuple(numbers)


def _check(options: SparePlanOptions) -> None:
    if options.site.gpus < options.site.gpus_per_node:
        raise UserError(f"--gpus {options.site.gpus} is less than one node has (--gpus-per-node)")
    if options.costs.group_gpus > options.site.gpus:
        raise UserError(
            f"--group-gpus {options.costs.group_gpus} is more than the job has (--gpus {options.site.gpus})"
        )


def _told(options: SparePlanOptions) -> dict[str, Any]:
    return {
        "site": asdict(options.site),
        "costs": asdict(options.costs),
        "days": options.days,
        "traces": options.traces,
        "seed": options.seed,
    }


def _print(console: Console, options: SparePlanOptions, rows: Sequence[ComparedWay], failures: float) -> None:
    site = options.site
    console.print(
        f"{site.gpus} GPUs for {options.days:g} days: {failures:.0f} failures, one every "
        f"{options.days * 24 / failures if failures else float('inf'):.1f} hours (mean of {options.traces} traces)"
    )
    standing = [way for way in Way if way is not Way.PREEMPT]
    table = Table("spare GPUs", *(way.value for way in standing))
    by = {(row.way, row.spares): row for row in rows}
    winners = {way: best(rows, way) for way in Way}
    for spares in sorted({row.spares for row in rows if row.way in standing}):
        cells = [by[way, spares] for way in standing]
        table.add_row(str(spares), *(_cell(row, row is winners[row.way]) for row in cells))
    console.print(table)
    for row in winners.values():
        console.print(
            f"{row.way.value}: best with {row.spares} spare GPUs: goodput {row.goodput:.1%} ± {row.spread:.1%}, "
            f"{row.waited_hours:.1f} h without devices, {row.lost_hours:.1f} h in work done again, restarts and pauses"
        )
    console.print(
        "Goodput: useful GPU-time by all that is paid for, spares too. In brackets: the share of the time in which the whole "
        "job goes forward."
    )


def _cell(row: ComparedWay, is_best: bool) -> str:
    text = f"{row.goodput:.1%} ({row.effective:.1%})"
    return f"[bold]{text}[/bold]" if is_best else text


def _draw(path: Path, options: SparePlanOptions, rows: Sequence[ComparedWay]) -> None:
    try:
        import matplotlib as mpl
    except ImportError as e:
        raise UserError(f"--picture needs matplotlib ({e}): pip install 'torchrelay[demo]'") from e
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.2), layout="constrained")
    for way in Way:
        of_way = [row for row in rows if row.way is way]
        if way is Way.PREEMPT:
            axes.axhline(of_way[0].goodput, linestyle="--", color="#7fae66", label=way.value)
            continue
        numbers = [row.spares for row in of_way]
        axes.plot(numbers, [row.goodput for row in of_way], marker="o", label=way.value)
        axes.fill_between(
            numbers,
            [row.goodput - row.spread for row in of_way],
            [row.goodput + row.spread for row in of_way],
            alpha=0.15,
        )
    axes.set(xlabel="spare GPUs", ylabel="goodput", title=f"{options.site.gpus} GPUs, {options.days:g} days")
    axes.legend()
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as e:  # ValueError: no kind of picture has such a name
        raise UserError(f"--picture {path}: {e}") from e
    finally:
        plt.close(figure)
