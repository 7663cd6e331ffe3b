"""What the walks have found becomes what the model is fed with."""

from __future__ import annotations

from torchrelay.cli.scaling.command import measured_of
from torchrelay.cli.scaling.walk import WalkedGate, WalkedMigration


def test_what_was_walked_feeds_the_model_by_round_and_by_rank() -> None:
    migrations = [WalkedMigration(n, 0.1, 1.0, 0.5 + n * 0.01, 0.0, n * 140, 1.0, 70.0) for n in (8, 64)]
    gates = [WalkedGate(2, 1.0, 20e-6, 1.0, 300e-6, 9_000.0), WalkedGate(64, 1.0, 120e-6, 1.0, 1800e-6, 8_000.0)]
    measured = measured_of(migrations, gates)
    assert round(measured.controller.per_rank_s, 6) == 0.01
    assert (round(measured.round_s * 1e6), round(measured.call_s * 1e6)) == (20, 300)
    assert (measured.store_ops_per_s, measured.status_bytes_per_rank, measured.most_ranks) == (8_000.0, 140.0, 64)
