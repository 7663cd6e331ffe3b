"""What protection cost and saved, as two bars: with torchrelay, and with a restart for each loss."""

from __future__ import annotations

from pathlib import Path

from torchrelay.cli.history.cost import HOUR_S, CostReport
from torchrelay.dashboard import words
from torchrelay.protocol.errors import UserError

COLORS = {"stood still": "#b5534a", "done again": "#d8944a", "spares": "#c7ccd1", "restarts": "#8c6a9a"}


def parts(told: CostReport) -> tuple[dict[str, float], dict[str, float]]:
    """Return what each bar is made of, in device-hours: with torchrelay, and with restarts."""
    again_h = told.ranks * (told.redone_s or 0.0) / HOUR_S
    stood_h = max(told.lost_device_h - again_h, 0.0)
    return (
        {"stood still": stood_h, "done again": again_h, "spares": told.spare_device_h},
        {"restarts": told.restart_device_h},
    )


def draw(told: CostReport, path: Path) -> None:
    """Draw the bars. Raises UserError without matplotlib, and for a file that cannot be written."""
    try:
        import matplotlib as mpl
    except ImportError as e:
        raise UserError(f"--picture needs matplotlib ({e}): pip install 'torchrelay[demo]'") from e
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 2.6), layout="constrained")
    for row, bar in enumerate(parts(told)):
        left = 0.0
        for name, device_h in bar.items():
            axes.barh(row, device_h, left=left, color=COLORS[name], label=name, height=0.55)
            left += device_h
        axes.text(left, row, f" {left:.2f}", va="center", fontsize=9)
    axes.set_yticks((0, 1), ("with torchrelay", "restarts (assumed)"))
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel("device-hours")
    axes.set_title(
        f"{told.run_id}: {words.count(told.losses_survived, 'lost rank')}, {words.count(told.moves_done, 'planned move')}",
        loc="left",
        fontsize=11,
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, ncols=4, loc="upper center", bbox_to_anchor=(0.45, -0.28))
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as e:  # ValueError: no kind of picture has such a name
        raise UserError(f"--picture {path}: {e}") from e
    finally:
        plt.close(figure)
