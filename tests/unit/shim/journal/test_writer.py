from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torchrelay.shim.journal.payload import SetUpJournal
from torchrelay.shim.journal.writer import Writer


def test_another_outermost_loop_begins_anew_and_so_does_the_same_one_a_second_time() -> None:
    engine: Any = SimpleNamespace(tracker=SimpleNamespace(stack=[]))
    writer = Writer(engine)
    engine.tracker.stack = [SimpleNamespace(site="set-up", entry=1), SimpleNamespace(site="inner", entry=0)]
    assert writer.begins_anew()
    writer._set_up = SetUpJournal("set-up", 1, (), (), (), young=False)
    assert not writer.begins_anew()
    engine.tracker.stack = [SimpleNamespace(site="set-up", entry=2)]
    assert writer.begins_anew()
