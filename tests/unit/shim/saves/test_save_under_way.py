"""A save that another process goes on with."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.save_side import GROUP, PATIENCE_S, UNDER_WAY, Side, enter, joined

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError
from torchrelay.shim.adapters.process_groups import process_group
from torchrelay.shim.comm.collectives import SAVE_RESULT
from torchrelay.shim.comm.finished import FinishedCollective
from torchrelay.shim.saves import async_saves
from torchrelay.shim.saves.save_agreement import SaveReport
from torchrelay.shim.script.save_future import SaveId


def test_a_new_process_saves_what_the_lost_one_was_about_to_save(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Any] = []
    monkeypatch.setattr(
        async_saves.save_under_way.async_checkpoint,
        "save",
        lambda state, **options: written.append((state, options)) or "result",
    )
    large = torch.arange(9000.0)
    side.begin({"large": large, "small": torch.ones(2)}, checkpoint_id="there")
    journaled, given = side.saves.journal(), side.saves.tensors()
    joiner = joined(side)
    future = joiner.future(SaveId(GROUP, 1))
    joiner.carry(journaled)
    for path, tensor in joiner.tensors().items():
        tensor.copy_(given[path])
    assert not future.done()
    enter(side, joiner, UNDER_WAY)
    assert future.result(PATIENCE_S) == "result"
    ((state, options),) = written
    assert torch.equal(state["large"], large)
    assert options == {"checkpoint_id": "there", "process_group": GROUP}
    assert joiner.begun() == {GROUP: 1}


def test_a_new_process_that_did_not_get_it_all_says_so(side: Side) -> None:
    side.begin({"large": torch.arange(9000.0)})
    journaled, joiner = side.saves.journal(), joined(side)
    joiner.carry(journaled)
    for tensor in joiner.tensors().values():
        tensor.zero_()  # memory that is given again could hold the very content
    store = enter(side, joiner, UNDER_WAY)
    with pytest.raises(UnsupportedError, match="rank 0 was lost, and what it was about to save is gone"):
        joiner.future(SaveId(GROUP, 1)).result(PATIENCE_S)
    assert SaveReport.of(store.get("torchrelay/saves/1/0").decode()).under_way == {SaveId(GROUP, 1): False}


def test_a_save_that_was_over_is_over_in_the_new_process(side: Side) -> None:
    joiner = joined(side)
    early = joiner.future(SaveId(GROUP, 1))
    joiner.carry(({GROUP: 2}, (), ((GROUP, 2),)))
    assert early.result(0) is None
    with pytest.raises(UnsupportedError, match="failed before its rank was lost"):
        joiner.future(SaveId(GROUP, 2)).result(0)


def test_what_a_joiner_begins_before_its_tensors_are_the_lost_rank_s_is_not_carried(side: Side) -> None:
    side.engine.records.answers = []
    save = side.begin()
    assert (save.complete, side.saves.journal()[1]) == (False, ((GROUP, 1, b""),))


def test_what_a_joiner_begins_on_its_way_in_is_numbered_as_the_lost_rank_s_was_and_not_done(side: Side) -> None:
    side.engine.way_in, written = object(), []
    side.engine.records.answers = [FinishedCollective(SAVE_RESULT, f"{GROUP}#8", [])]
    side.saves.pass_to({GROUP: 7})
    assert side.start(written.append).result() is None  # as the lost rank's journal says
    assert (written, side.saves.begun()) == ([], {GROUP: 8})


def test_a_group_that_is_not_here_leaves_the_save_incomplete(side: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise StateMismatchError("there is no process group")

    side.begin()
    journaled, joiner = side.saves.journal(), joined(side)
    monkeypatch.setattr(process_group, "named", missing)
    joiner.carry(journaled)
    enter(side, joiner, UNDER_WAY)
    with pytest.raises(UnsupportedError, match="cannot be finished"):
        joiner.future(SaveId(GROUP, 1)).result(PATIENCE_S)


def test_plans_that_are_kept_hold_for_one_generation_and_never_for_a_joiner_on_its_way(side: Side) -> None:
    assert side.saves.era() == "0"
    joiner = joined(side)
    assert joiner.era() == "on the way in"
    enter(side, joiner, UNDER_WAY)
    assert joiner.era() == "1"
