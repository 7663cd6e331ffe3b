from __future__ import annotations

import typing

from torchrelay.controller.migration import events
from torchrelay.controller.migration.table import TABLE
from torchrelay.controller.processes.rank_reports import FOR_THE_MIGRATION
from torchrelay.protocol.words.phases import Phase

TAKEN = {kind for row in TABLE.values() for kind in row.on}


def test_the_table_has_a_row_for_each_phase() -> None:
    assert set(TABLE) == set(Phase)


def test_each_event_is_taken_in_some_phase() -> None:
    """But for the clock, which each row has a place of its own for, and reports, which stand in the table by themselves."""
    assert set(typing.get_args(events.Event)) - TAKEN == {events.TimePassed, events.Said}


def test_the_reports_in_the_table_are_those_that_are_handed_to_the_migration() -> None:
    assert TAKEN - set(typing.get_args(events.Event)) == set(FOR_THE_MIGRATION)
