"""What restarts would have cost: from a checkpoint that was really saved where there is one, else as is assumed."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import told_runs as t

from torchrelay.cli.history import cost_picture
from torchrelay.cli.history.cost import Assumed, cost_report, restarts_cost
from torchrelay.cli.history.report import facts
from torchrelay.protocol import events as e
from torchrelay.protocol.errors import UserError

ASSUMED = Assumed(1800.0, 300.0)


@pytest.mark.parametrize(
    ("lost_s", "saved_s", "cost_s", "counted"),
    [
        ([1000.0], [], 1200.0, 0),
        ([1000.0], [400.0, 900.0], 400.0, 1),
        ([1000.0], [1001.0], 1200.0, 0),  # it was saved afterwards
        ([1000.0], [50.0], 1200.0, 0),  # a job that saves every 30 minutes would have had a newer one
        ([1000.0, 5000.0], [900.0], 1600.0, 1),
        ([], [900.0], 0.0, 0),
    ],
)
def test_a_loss_costs_the_time_since_the_newest_checkpoint_and_the_restart(
    lost_s: list[float], saved_s: list[float], cost_s: float, counted: int
) -> None:
    assert restarts_cost(lost_s, saved_s, ASSUMED) == (cost_s, counted)


def test_a_checkpoint_that_was_asked_for_is_the_basis_of_the_losses_after_it() -> None:
    told = list(t.small_run())
    first_s = next(time_s for time_s, what in told if isinstance(what, e.MigrationStarted))
    record = t.record_of(told)
    plain = cost_report(record, record.newest_s, ASSUMED)
    assert plain.counted_from_saved == 0
    saved = (first_s - 10.0, e.CheckpointSaved("/jit/a", 7, "torchrelay run --resume /jit/a"))
    with_one = cost_report(t.record_of(sorted([*told, saved], key=lambda each: each[0])), record.newest_s, ASSUMED)
    assert with_one.counted_from_saved == 2
    assert with_one.restart_device_h < plain.restart_device_h / 2
    assert dict(facts(with_one))["restarts from a checkpoint"].endswith(
        "2 of them from a checkpoint that was saved before"
    )


def test_the_picture_has_a_bar_with_torchrelay_and_one_with_restarts(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    record = t.record_of(t.small_run())
    told = cost_report(record, record.newest_s, ASSUMED)
    with_us, without = cost_picture.parts(told)
    assert sum(with_us.values()) == pytest.approx(told.lost_device_h + told.spare_device_h)
    assert without == {"restarts": told.restart_device_h}
    cost_picture.draw(told, tmp_path / "cost.png")
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(UserError, match=r"--picture .*nowhere"):
        cost_picture.draw(told, tmp_path / "nowhere" / "cost.png")
