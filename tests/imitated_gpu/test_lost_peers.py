"""A peer that dies under a collective, and communicators that come to nothing."""

from __future__ import annotations

from pathlib import Path

from imitated_gpu import ranks
from imitated_gpu.faults import Orders


def test_a_survivor_of_a_peer_that_died_in_silence_aborts_and_goes_on_with_another(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    with ranks.started("abandoned", 2, 3, **orders.environment()) as (survivor, victim, joiner):
        victim.next_report()
        victim.kill()
        posted = survivor.next_report()
        survivor.go_on()
        facts = survivor.next_report()
        joined = joiner.next_report()
    assert posted["posted_s"] < 10, "the host did not wait for the peer"
    assert facts["is_stuck"], "the stream did"
    assert facts["garbage"], "what was queued behind the collective ran"
    assert facts["intact"]
    assert facts["communicators"] == 0
    assert facts["sum"] == joined["sum"] == 3
    assert facts["bytes"] == posted["bytes"]
    assert orders.fired() == []
