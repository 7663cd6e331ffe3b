"""Walks what can be walked on this machine, reckons the rest, and says which term leads at which size."""

from __future__ import annotations

import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from torchrelay.cli.display.teller import make_console
from torchrelay.cli.display.waiting import waiting
from torchrelay.cli.scaling import model
from torchrelay.cli.scaling.model import Basis, Installation, Measured, Term
from torchrelay.cli.scaling.walk import WalkedGate, WalkedMigration, walk_gate, walk_migration
from torchrelay.protocol.errors import TorchrelayError, UserError
from torchrelay.protocol.names import MAX_MESSAGE_BYTES

Walked = TypeVar("Walked", WalkedMigration, WalkedGate)

LATE_S = 0.2
"""A packet that was lost is sent again after the least that Linux waits for its acknowledgement."""
_COLOURS = {
    Basis.MEASURED: "#2a6f97",
    Basis.EXTRAPOLATED: "#e07a5f",
    Basis.PUBLISHED: "#8a7fae",
    Basis.GIVEN: "#b8b8b8",
}


@dataclass(frozen=True)
class ScalingOptions:
    """The command line, in numbers of ranks.

    `walks`: of the migrations that are walked; `gates`: of the gates; `sizes`: of the jobs that are reckoned.
    """

    site: Installation
    walks: tuple[int, ...]
    gates: tuple[int, ...]
    sizes: tuple[int, ...]
    late_share: float
    out: Path | None
    picture: Path | None


def show_scaling(options: ScalingOptions) -> int:
    """Print and draw what was measured and reckoned. A walk that fails is told, and left out.

    Raises UserError if too few walks are left for a line.
    """
    console = make_console(sys.stdout)
    load = os.getloadavg()[0]
    with waiting(console, "walks", len(options.walks) + len(options.gates)) as are_done:
        migrations = _walked(console, walk_migration, options.walks, are_done)
        gates = _walked(console, walk_gate, options.gates, lambda done: are_done(len(options.walks) + done))
    if len(migrations) < 2 or not gates:
        raise UserError("a line needs two sizes of --walk at least, and one of --gate")
    measured = measured_of(migrations, gates)
    console.print(_walks(migrations, measured))
    console.print(_gates(gates))
    terms = {ranks: model.migration(ranks, options.site, measured) for ranks in options.sizes}
    console.print(_reckoned(terms))
    console.print(_every_step(options, measured))
    console.print(f"{os.cpu_count()} processors, load {load:.1f} before and {os.getloadavg()[0]:.1f} at the end")
    if options.out is not None:
        told = {
            "migrations": [asdict(walked) for walked in migrations],
            "gates": [asdict(walked) for walked in gates],
            "measured": asdict(measured),
            "site": asdict(options.site),
            "terms": {ranks: [asdict(term) for term in of_size] for ranks, of_size in terms.items()},
            "load": [load, os.getloadavg()[0]],
        }
        options.out.write_text(json.dumps(told, indent=1) + "\n")
    if options.picture is not None:
        sizes = sorted({*(walked.ranks for walked in migrations), *options.sizes})
        _draw(options.picture, migrations, {n: model.migration(n, options.site, measured) for n in sizes})
    return 0


def _walked(
    console: Console, walk: Callable[[int], Walked], sizes: Sequence[int], are_done: Callable[[int], None]
) -> list[Walked]:
    """Return the walks that came to their end. `are_done` is told how many of these walks are over."""
    found = []
    for number, ranks in enumerate(sizes, 1):
        try:
            found.append(walk(ranks))
        except TorchrelayError as e:
            console.print(f"left out: {e}")
        else:
            console.print(f"walked: {found[-1]}")
        are_done(number)
    return found


def measured_of(migrations: Sequence[WalkedMigration], gates: Sequence[WalkedGate]) -> Measured:
    """Return the numbers for the model. The store's rate is that of the largest walk, where the most ask at once. Pure."""
    largest = max(gates, key=lambda walked: walked.ranks)
    with_rounds = [walked for walked in gates if walked.ranks > 1]
    return Measured(
        model.fit_line([(walked.ranks, walked.controller_cpu_s) for walked in migrations]),
        statistics.median(walked.gate_cpu_s / model.rounds(walked.ranks) for walked in with_rounds),
        statistics.median(walked.connect_cpu_s / model.rounds(walked.ranks) for walked in with_rounds),
        largest.gets_per_s,
        max(walked.status_bytes / walked.ranks for walked in migrations if walked.ranks >= 8),
        max(walked.ranks for walked in migrations),
    )


def _walks(migrations: Sequence[WalkedMigration], measured: Measured) -> Table:
    table = Table("ranks", "controller, s", "by the line, s", "all told, s", "whole, s", "status, ms", "MiB")
    for walked in migrations:
        table.add_row(
            str(walked.ranks),
            f"{walked.controller_cpu_s:.2f}",
            f"{measured.controller.at(walked.ranks):.2f}",
            f"{walked.told_s:.3f}",
            f"{walked.whole_s:.2f}",
            f"{walked.status_s * 1e3:.0f}",
            f"{walked.controller_mib:.0f}",
        )
    return table


def _gates(gates: Sequence[WalkedGate]) -> Table:
    table = Table(
        "ranks", "a round, µs", "a connection, µs", "store, answers/s", "gate, all on here, ms", "connected, s"
    )
    for walked in gates:
        rounds = model.rounds(walked.ranks)
        table.add_row(
            str(walked.ranks),
            f"{walked.gate_cpu_s / rounds * 1e6:.0f}",
            f"{walked.connect_cpu_s / rounds * 1e6:.0f}",
            f"{walked.gets_per_s:.0f}",
            f"{walked.gate_s * 1e3:.2f}",
            f"{walked.connect_s:.2f}",
        )
    return table


def _reckoned(terms: dict[int, list[Term]]) -> Table:
    table = Table("one rank is killed; seconds", *(f"{ranks:,}" for ranks in terms))
    by_name = zip(*terms.values(), strict=True)
    for row in by_name:
        table.add_row(row[0].name, *(_cell(term, terms[ranks]) for ranks, term in zip(terms, row, strict=True)))
    table.add_row("sum", *(f"{sum(term.seconds for term in of_size):.1f}" for of_size in terms.values()))
    return table


def _cell(term: Term, of_size: Sequence[Term]) -> str:
    mark = {Basis.MEASURED: "", Basis.EXTRAPOLATED: " ~", Basis.PUBLISHED: " p", Basis.GIVEN: " g"}[term.basis]
    text = f"{term.seconds:.4f}" if term.seconds < 0.01 else f"{term.seconds:.2f}"
    return f"[bold]{text}{mark}[/bold]" if term is model.leading(of_size) else text + mark


def _every_step(options: ScalingOptions, measured: Measured) -> Table:
    table = Table("", *(f"{ranks:,}" for ranks in options.sizes))
    gates = []
    late = []
    status = []
    for ranks in options.sizes:
        usual_s = model.gate_s(ranks, options.site, measured)
        gates.append(f"{usual_s * 1e3:.2f}")
        share = model.late_gates_share(ranks, options.late_share)
        late.append(f"{share:.2%} ({(usual_s + share * LATE_S) * 1e3:.1f})")
        size = ranks * measured.status_bytes_per_rank
        status.append(f"{size / 1e6:.2f}" + (" (too large)" if size > MAX_MESSAGE_BYTES else ""))
    table.add_row("gate, all come at once, ms", *gates)
    table.add_row(f"late gates, {options.late_share:.0e} of messages lost (mean, ms)", *late)
    table.add_row("status, MB", *status)
    return table


def _draw(path: Path, migrations: Sequence[WalkedMigration], terms: dict[int, list[Term]]) -> None:
    try:
        import matplotlib as mpl
    except ImportError as e:
        raise UserError(f"--picture needs matplotlib ({e}): pip install 'torchrelay[demo]'") from e
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5), layout="constrained")
    sizes = list(terms)
    for row in zip(*terms.values(), strict=True):
        seconds = [term.seconds for term in row]
        for start in range(len(sizes) - 1):
            colour = _COLOURS[row[start + 1].basis]
            axes.plot(sizes[start : start + 2], seconds[start : start + 2], color=colour, marker="o", markersize=3)
        axes.annotate(row[-1].name, (sizes[-1], seconds[-1]), xytext=(6, -3), textcoords="offset points", fontsize=8)
    walked = [(of.ranks, of.controller_cpu_s) for of in migrations]
    axes.plot(*zip(*walked, strict=True), "s", color=_COLOURS[Basis.MEASURED], markersize=6)
    for basis, colour in _COLOURS.items():
        axes.plot([], [], color=colour, label=basis.value)
    axes.set(
        xscale="log", yscale="log", xlabel="ranks", ylabel="seconds", title="One rank is killed: the terms of the pause"
    )
    axes.set_xlim(min(of.ranks for of in migrations), sizes[-1] * 8)
    axes.legend(loc="upper left", fontsize=8)
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as e:  # ValueError: no kind of picture has such a name
        raise UserError(f"--picture {path}: {e}") from e
    finally:
        plt.close(figure)
