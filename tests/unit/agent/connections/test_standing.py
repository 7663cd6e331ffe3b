from __future__ import annotations

from torchrelay.agent.connections.standing import AgentStanding
from torchrelay.protocol.messages import Armed, Commit, FromWorker, Interrupt, Protect, Warm, WorkerExited


def test_orders_tell_which_generation_a_process_has_heard_of_and_which_it_was_let_into() -> None:
    standing = AgentStanding()
    standing.ordered(Protect(True, "", b"secret"))
    standing.ordered(Interrupt(2, ""))
    assert (standing.generation, standing.in_force, standing.protected) == (2, -1, True)
    assert standing.gate_secret == b"secret"
    assert "secret'" not in repr(standing)
    standing.ordered(Commit(2))
    assert (standing.generation, standing.in_force) == (2, 2)
    standing.ordered(Protect(False, ""))
    assert (standing.generation, standing.protected) == (2, False)


def test_a_new_controller_hears_what_the_process_has_said_and_how_it_ended() -> None:
    standing = AgentStanding()
    standing.said.keep(Armed(1, 2, "gloo", ""))
    standing.said.keep(Warm("2.13"))
    exited = WorkerExited("n0.w1", 137, 9, False)
    assert standing.again("n0.w1") == [
        FromWorker("n0.w1", Warm("2.13")),
        FromWorker("n0.w1", Armed(1, 2, "gloo", "")),
    ]
    standing.exited = exited
    assert standing.again("n0.w1")[-1] == exited
