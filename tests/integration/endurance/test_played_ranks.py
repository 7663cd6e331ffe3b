"""Ranks that are played go through real gates."""

from __future__ import annotations

import pytest

from torchrelay.cli.scaling.walk import walk_gate, walk_migration

pytestmark = pytest.mark.core


def test_played_ranks_meet_at_real_gates() -> None:
    walked = walk_gate(5)
    assert walked.gate_cpu_s > 0
    assert walked.connect_s > 0
    assert walked.gets_per_s > 0


def test_a_migration_of_played_ranks_goes_through_a_real_controller() -> None:
    walked = walk_migration(4)
    assert walked.ranks == 4
    assert 0 < walked.told_s <= walked.whole_s
    assert walked.controller_cpu_s >= 0
    assert walked.status_bytes > 100
