"""A rank's next holder gets the faults that have not fired."""

from __future__ import annotations

from torchrelay.agent.processes.fault_book import FaultBook
from torchrelay.protocol.names import ENV_INJECT

KILL, STOP = "kill:rank=1,step=3,phase=gate", "stop:rank=1,step=9,phase=forward"


def test_a_joiner_gets_what_is_left_of_its_rank() -> None:
    book = FaultBook([KILL, STOP, "kill:rank=2,step=1"])
    assert book.environment(1) == {ENV_INJECT: f"{KILL};{STOP}"}
    book.fired(KILL)
    assert book.environment(1) == {ENV_INJECT: STOP}
    book.fired(STOP)
    assert book.environment(1) == {}


def test_the_same_fault_given_twice_fires_twice() -> None:
    book = FaultBook([KILL, KILL])
    book.fired(KILL)
    assert book.environment(1) == {ENV_INJECT: KILL}


def test_a_fault_that_nobody_asked_for_changes_nothing() -> None:
    book = FaultBook([KILL])
    book.fired("kill:rank=1,step=4,phase=gate")
    assert book.environment(1) == {ENV_INJECT: KILL}
