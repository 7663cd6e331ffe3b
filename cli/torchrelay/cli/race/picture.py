"""Steps over time, a line for each arm, with each fault marked."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

from torchrelay.cli.race.results import ArmResult
from torchrelay.protocol.errors import UserError

COLORS = ("#9a9a9a", "#d9730d", "#1f5fa8", "#b01818", "#c98aa8", "#6b4a12")


def draw(results: Sequence[ArmResult], path: Path) -> None:
    """Draw the first repetition. Raises UserError if matplotlib is not installed."""
    try:
        import matplotlib as mpl
    except ImportError as e:
        raise UserError(f"no picture: {e}; pip install 'torchrelay[demo]'") from e
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axis = plt.subplots(figsize=(10, 5.5), layout="constrained")
    shown = [r for r in results if r.repetition == 1]
    for number, result in enumerate(shown):
        if result.figures is None:
            continue
        color = COLORS[number % len(COLORS)]
        times = [at for at, _ in result.figures.progress]
        steps = [step for _, step in result.figures.progress]
        label = result.arm + (f" ({result.ended})" if result.ended else "")
        axis.plot(times, steps, color=color, lw=4 if number == 0 else 1.7, label=label, drawstyle="steps-post")
        for name, _, at in result.struck:
            height = steps[max(bisect_right(times, at) - 1, 0)]
            axis.plot(at, height, marker="x", color=color, ms=9, mew=2.2)
            text = name.partition(" ")[0]
            axis.annotate(text, (at, height), xytext=(6, -9), textcoords="offset points", fontsize=8, color=color)
    axis.set_xlabel("seconds since the arm's first step")
    axis.set_ylabel("steps done")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="#e6e6e6", lw=0.6)
    axis.legend(loc="lower right", fontsize=9, frameon=False)
    axis.set_title("The same training and the same faults; each x is a fault", loc="left", fontsize=11)
    figure.savefig(path, dpi=120)
    plt.close(figure)
