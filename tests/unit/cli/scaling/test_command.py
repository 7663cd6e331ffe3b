"""What the walks have found becomes what the model is fed with."""

from __future__ import annotations

from rich.console import Console

from torchrelay.cli.scaling.command import _walked, measured_of
from torchrelay.cli.scaling.walk import WalkedGate, WalkedMigration
from torchrelay.protocol.errors import TorchrelayError


def test_what_was_walked_feeds_the_model_by_round_and_by_rank() -> None:
    migrations = [WalkedMigration(n, 0.1, 1.0, 0.5 + n * 0.01, 0.0, n * 140, 1.0, 70.0) for n in (8, 64)]
    gates = [WalkedGate(2, 1.0, 20e-6, 1.0, 300e-6, 9_000.0), WalkedGate(64, 1.0, 120e-6, 1.0, 1800e-6, 8_000.0)]
    measured = measured_of(migrations, gates)
    assert round(measured.controller.per_rank_s, 6) == 0.01
    assert (round(measured.round_s * 1e6), round(measured.call_s * 1e6)) == (20, 300)
    assert (measured.store_ops_per_s, measured.status_bytes_per_rank, measured.most_ranks) == (8_000.0, 140.0, 64)


def test_each_walk_counts_also_one_that_does_not_come_to_its_end() -> None:
    told: list[int] = []

    def walk(ranks: int) -> WalkedGate:
        if ranks == 8:
            raise TorchrelayError("no memory")
        return WalkedGate(ranks, 1.0, 20e-6, 1.0, 300e-6, 9_000.0)

    found = _walked(Console(quiet=True), walk, (2, 8, 64), told.append)
    assert ([walked.ranks for walked in found], told) == ([2, 64], [1, 2, 3])
