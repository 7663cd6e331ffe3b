from __future__ import annotations

from torchrelay.controller.picture.rank_journal import RankJournal
from torchrelay.protocol.messages import JournalContent
from torchrelay.protocol.names import WorkerId


def test_a_boundary_that_a_rank_has_withdrawn_is_no_way_in_also_where_it_was_known_before() -> None:
    journal, worker = RankJournal(), WorkerId("n0.w1")
    journal.add(JournalContent(worker, {4: b"four", 5: b"five"}, {4: b"gate"}))
    journal.add(JournalContent(worker, {3: b"three", 4: b"four", 5: b""}, {4: b"gate"}))
    assert journal.boundaries == {3: b"three", 4: b"four"}
