"""Which rung a migration has taken is told by where the rank lives then."""

from __future__ import annotations

from torchrelay.controller.kube.status.rungs import lost_ranks, taken_rungs
from torchrelay.protocol.events import MigrationFinished
from torchrelay.protocol.words.phases import ROLLBACK, UNPLANNED

LEAVERS = {0: "train-0:u0.1", 1: "train-1:u1.1"}


def finished(kind: str, *moved: tuple[int, str]) -> MigrationFinished:
    ranks, spares = tuple(r for r, _ in moved), tuple(w for _, w in moved)
    return MigrationFinished(
        "m1",
        kind,
        "committed",
        ranks[0],
        spares[0],
        ranks,
        spares,
        1,
        {"detect": 0.25, "transfer": 0.5},
        0,
        9,
        1,
        "done",
    )


def test_a_rank_that_a_spares_pod_took_over_took_the_rung_of_spares() -> None:
    (rung,) = taken_rungs(finished(UNPLANNED, (1, "spare-x:u7.1")), LEAVERS, {1: ""})
    assert (rung.rung, rung.outcome) == ("next-spare", "taken")
    assert rung.reason == "a spare has rank 1; 0.8 s without training, 1 step done again"


def test_a_rank_that_came_back_in_its_pod_took_the_rung_of_respawning() -> None:
    refused, rung = taken_rungs(finished(UNPLANNED, (1, "train-1:u1.2")), LEAVERS, {1: "no spare is left for rank 1"})
    assert (refused.rung, refused.outcome, refused.reason) == ("next-spare", "refused", "no spare is left for rank 1")
    assert (rung.rung, rung.outcome) == ("respawn", "taken")


def test_a_pod_of_the_same_name_is_another_one() -> None:
    (rung,) = taken_rungs(finished(UNPLANNED, (1, "train-1:u9.1")), LEAVERS, {})
    assert rung.rung == "next-spare"


def test_both_in_one_migration() -> None:
    told = taken_rungs(finished(UNPLANNED, (0, "spare-x:u7.1"), (1, "train-1:u1.2")), LEAVERS, {})
    assert [(t.rung, t.outcome) for t in told] == [("next-spare", "taken"), ("respawn", "taken")]


def test_ranks_that_go_back_to_copies_in_their_place_were_not_lost() -> None:
    what = finished(ROLLBACK, (1, "spare-x:u7.1"), (0, "train-0:u0.2"))
    assert lost_ranks(what) == {1: "spare-x:u7.1"}
