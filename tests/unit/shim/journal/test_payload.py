from __future__ import annotations

import pickle
from typing import Any

import pytest

from torchrelay.protocol.errors import JournalError
from torchrelay.shim.capture import rng
from torchrelay.shim.journal import payload

HEAD = payload.HeadState([], rng.RngState(b"", b""), {})


def test_a_record_comes_back_as_it_was() -> None:
    assert payload.load(payload.dump(HEAD), payload.HeadState) == HEAD


@pytest.mark.parametrize("data", [b"", b"garbage", pickle.dumps(HEAD)[:-5], b"cno_such_module\nname\n."])
def test_what_cannot_be_read_is_an_error_of_the_journal(data: bytes) -> None:
    with pytest.raises(JournalError, match="cannot be read here"):
        payload.load(data, payload.HeadState)


def test_a_record_of_another_kind_is_refused() -> None:
    with pytest.raises(JournalError, match="expected GateJournal in the journal, found HeadState"):
        payload.load(payload.dump(HEAD), payload.GateJournal)


STATE = rng.RngState(b"t", b"p", b"n", ((0, b"c"),))
LOADER = payload.LoaderRecord(STATE, ((None, {"epoch": 1}),), 3, (STATE, (), b"sampler"), (STATE, STATE), 7)
LINK = payload.LinkRecord(
    "site", 1, 2, STATE, 5, range(3), (LOADER, None, LOADER._replace(first=None)), b"head", ("result",)
)
BOUNDARY = payload.BoundaryJournal(
    4,
    True,
    [LINK, LINK._replace(heads=9)],
    [pickle.dumps([b"node", b"another"]), pickle.dumps([b"the last"])],
    STATE,
    ("x",),
    {3: LOADER},
    ("y",),
    ("s",),
    ("a",),
    {"s": (1, 2)},
    ("Muon",),
    ({"saving": 3}, (("saving", 3, b"save"),), (("saving", 1),)),
    b"gradients",
    ("0:queue",),
)
PASSED = payload.PassedLoop("site", 1, b"journal", b"gate", ("tree",), 3, (2, 5))
EPOCH = payload.EpochBegin(STATE, ({"epoch": 2},), 77, (b"worker", b"worker"))
FULL_LOADER = LOADER._replace(
    epoch=EPOCH,
    turns=(payload.SamplerTurn(4, STATE, ()),),
    data=((({"asked": 1},), ((("dataset", "random"), b"state"),), ((0, "cached", b"item"),)),),
    shared=((("collate_fn", "counter"), b"four"),),
    mark=b"mark",
)
FULL_LINK = LINK._replace(
    loaders=(FULL_LOADER, None), passed=(PASSED,), draw=({1: b"node"}, tuple(STATE), {}), first_draw=2, mark=b"mark"
)
FULL = BOUNDARY._replace(
    links=[FULL_LINK],
    loaders={3: FULL_LOADER},
    groups=(("1", (0, 2), "gloo", "of the fold"),),
    scripted=b"calls",
    left_by_updates=b"ways",
    unproven=(("module0.w", 3),),
    quiet=b"paths",
    since=3,
    fetching=(2, (("Trainer", "taken"),), (("Trainer", "fetched"),)),
)
GATE = payload.GateJournal(4, 2, {1: b"node"}, STATE, ("log",), ("z",), 8, (("module0.w", 3),), (("kept", 1),))


def written(record: payload.BoundaryJournal | payload.GateJournal) -> bytes:
    return b"".join(record.in_parts()) if isinstance(record, payload.BoundaryJournal) else record.written()


@pytest.mark.parametrize("record", [BOUNDARY, BOUNDARY._replace(links=[], loaders={}), GATE])
def test_a_record_of_a_step_comes_back_from_its_plain_form(
    record: payload.BoundaryJournal | payload.GateJournal,
) -> None:
    data = written(record)
    assert b"torchrelay" not in data  # no class is looked up for it
    again = payload.load(data, type(record))
    assert again == record
    assert type(again.rng) is rng.RngState
    if isinstance(again, payload.BoundaryJournal):
        assert [type(loader) for link in again.links for loader in link.loaders if loader] == [payload.LoaderRecord] * (
            2 * len(again.links)
        )


@pytest.mark.parametrize("record", [FULL_LOADER, FULL_LINK, FULL, GATE])
def test_no_field_is_lost_in_the_plain_form(record: Any) -> None:
    """Whoever adds a field gives it to the records above, too: what is at its default would not be missed."""
    assert [name for name, default in record._field_defaults.items() if getattr(record, name) == default] == []
    if isinstance(record, payload.BoundaryJournal | payload.GateJournal):
        assert payload.load(written(record), type(record)) == record
    else:
        assert type(record).of(record.plain()) == record


def test_nodes_are_read_out_of_all_blocks() -> None:
    again = payload.load(written(BOUNDARY), payload.BoundaryJournal)
    assert again.nodes == [b"node", b"another", b"the last"]
    assert GATE._replace(node_count=3).on(again) == [b"node", b"node", b"the last"]


def test_a_record_of_another_kind_of_step_is_refused() -> None:
    with pytest.raises(JournalError, match="GateJournal of another version"):
        payload.load(written(BOUNDARY), payload.GateJournal)
    with pytest.raises(JournalError, match="BoundaryJournal of another version"):
        payload.load(GATE.written(), payload.BoundaryJournal)
