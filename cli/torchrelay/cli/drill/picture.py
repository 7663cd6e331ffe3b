"""A drill's table as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torchrelay.cli.drill import promise
from torchrelay.cli.drill.practice import StruckCell
from torchrelay.cli.drill.report import WORDS, closing
from torchrelay.cli.drill.result import Drill
from torchrelay.cli.struck_runs.cells import KINDS, PHASES
from torchrelay.protocol.errors import UserError

COLORS = {
    promise.IDENTICAL: "#3d8f4f",
    promise.OTHERWISE: "#a3b84a",
    promise.REFUSED: "#6fa8bf",
    promise.NOT_STRUCK: "#c9c9c9",
    promise.FALSE_PROMISE: "#c8553d",
    promise.WRONG: "#4a0e2e",
}


def draw(drill: Drill, path: Path) -> None:
    """Write a PNG: a row for each kind of fault, a column for each phase, a square for each fault.

    Raises UserError if matplotlib is not installed.
    """
    try:
        import matplotlib as mpl
    except ImportError as e:
        raise UserError(f"--picture {path}: {e}; pip install 'torchrelay[demo]'") from e
    mpl.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch, Rectangle

    kinds = [k for k in KINDS if any(s.cell.kind == k for s in drill.struck)]
    phases = [p for p in PHASES if any(s.cell.phase == p for s in drill.struck)]
    figure, axis = plt.subplots(figsize=(2.4 + 0.8 * len(phases), 1.8 + 0.5 * len(kinds)), dpi=130)
    for row, kind in enumerate(kinds):
        for column, phase in enumerate(phases):
            here = [s for s in drill.struck if (s.cell.kind, s.cell.phase) == (kind, phase)]
            for place, color in enumerate(_colors(here)):
                width = 0.9 / len(here)
                axis.add_patch(Rectangle((column - 0.45 + place * width, row - 0.45), width, 0.9, color=color))
    axis.set_xlim(-0.5, len(phases) - 0.5)
    axis.set_ylim(len(kinds) - 0.5, -0.5)
    axis.set_xticks(range(len(phases)), phases, fontsize=8)
    axis.set_yticks(range(len(kinds)), kinds, fontsize=8)
    axis.tick_params(length=0)
    for side in axis.spines.values():
        side.set_visible(False)
    axis.set_title(closing(drill), fontsize=8, loc="left")
    handles = [Patch(facecolor=COLORS[name], label=WORDS[name]) for name in promise.OUTCOMES if drill.counts[name]]
    figure.legend(handles=handles, loc="lower center", ncols=3, fontsize=7, frameon=False)
    figure.tight_layout(rect=(0, 0.12, 1, 1))
    figure.savefig(path)
    plt.close(figure)


def _colors(struck: Sequence[StruckCell]) -> list[str]:
    return [COLORS[s.outcome.outcome] for s in struck]
