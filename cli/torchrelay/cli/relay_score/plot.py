"""The matrix as a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchrelay.cli.relay_score.report import closing, column_names, row_names, worst
from torchrelay.cli.relay_score.results import Result
from torchrelay.cli.struck_runs.classify import CLASSES
from torchrelay.protocol.errors import UserError

COLORS = {
    "identical": "#3d8f4f",
    "redone": "#a3b84a",
    "fallback": "#e3b23c",
    "no-migration": "#6fa8bf",
    "not-injected": "#c9c9c9",
    "lost": "#c8553d",
    "wrong": "#4a0e2e",
}
NOT_RUN = "#ffffff"


def draw(results: Sequence[Result], order: Sequence[str], path: Path) -> None:
    """Write a PNG: a row for each entry, a column for each kind and phase, the color of the worst of its ranks.

    Raises UserError if matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as e:
        raise UserError(f"no picture: {e}; pip install 'torchrelay[demo]'") from e
    mpl.use("Agg")
    from matplotlib import colors
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    columns = column_names(results)
    rows = row_names(results, order)
    figure, axis = plt.subplots(figsize=(3.2 + 0.42 * len(columns), 1.8 + 0.22 * max(len(rows), 4)), dpi=130)
    palette = colors.ListedColormap([NOT_RUN, *(COLORS[name] for name in CLASSES)])
    axis.imshow(_numbers(results, rows, columns), cmap=palette, vmin=0, vmax=len(CLASSES), aspect="auto")
    axis.set_xticks(range(len(columns)), [f"{kind} {phase}" for kind, phase in columns], rotation=90, fontsize=7)
    axis.set_yticks(range(len(rows)), rows, fontsize=7)
    axis.set_xticks([i - 0.5 for i in range(len(columns) + 1)], minor=True)
    axis.set_yticks([i - 0.5 for i in range(len(rows) + 1)], minor=True)
    axis.grid(which="minor", color="white", linewidth=1)
    axis.tick_params(which="both", length=0)
    for side in axis.spines.values():
        side.set_visible(False)
    axis.set_title(closing(results), fontsize=9, loc="left")
    handles = [Patch(facecolor=COLORS[name], label=name) for name in CLASSES]
    figure.legend(handles=handles, loc="lower center", ncols=len(CLASSES), fontsize=7, frameon=False)
    figure.tight_layout(rect=(0, 0.04, 1, 1))
    figure.savefig(path)
    plt.close(figure)


def _numbers(results: Sequence[Result], rows: Sequence[str], columns: Sequence[tuple[str, str]]) -> list[list[int]]:
    """Return the number of each color in the picture; 0 if no cell was run there."""
    outcomes: dict[tuple[str, str, str], list[str]] = {}
    for r in results:
        outcomes.setdefault((r.cell.entry, r.cell.kind, r.cell.phase), []).append(r.outcome)
    return [
        [CLASSES.index(worst(found)) + 1 if (found := outcomes.get((row, *column))) else 0 for column in columns]
        for row in rows
    ]
