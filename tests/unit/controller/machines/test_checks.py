"""The checks of a job's machines are compared with each other, and none goes before all know."""

from __future__ import annotations

import dataclasses

from torchrelay.controller.machines.checks import GONE_S, ChecksMeeting
from torchrelay.protocol.messages import MachinesCompared, Program

ONE = Program("/src/train.py", "aa", {"model.py": "1"}, "3.11.7", "2.13.0", node="n0", check="a", nnodes=2)
TWO = dataclasses.replace(ONE, node="n1", check="b")
TWICE = "two machines have come as n0: give each machine its own --node-rank"


def test_each_is_compared_with_the_others_and_it_is_over_once_all_have_been_told_so() -> None:
    meeting = ChecksMeeting(2)
    assert meeting.compare(ONE, 0.0) == MachinesCompared()
    assert not meeting.is_whole
    other = dataclasses.replace(TWO, torch="9")
    assert "n0 has torch 2.13.0, this machine has 9" in meeting.compare(other, 1.0).refused[0]
    assert (meeting.is_whole, meeting.is_over) == (True, False)
    assert "n1 has torch 9, this machine has 2.13.0" in meeting.compare(ONE, 2.0).refused[0]
    assert meeting.is_over


def test_one_that_has_ended_is_not_counted_and_another_one_of_its_machine_is_compared_anew() -> None:
    meeting = ChecksMeeting(2)
    meeting.compare(dataclasses.replace(TWO, torch="9"), 0.0)
    assert meeting.compare(ONE, GONE_S) == MachinesCompared()
    assert meeting.compare(TWO, GONE_S + 0.5) == MachinesCompared(("n0",))
    assert meeting.compare(ONE, GONE_S + 1.0) == MachinesCompared(("n1",))


def test_who_has_been_told_may_go_and_the_others_are_told_all_the_same() -> None:
    meeting = ChecksMeeting(2)
    meeting.compare(ONE, 0.0)
    meeting.compare(TWO, 1.0)
    assert meeting.compare(ONE, 2.0 + GONE_S) == MachinesCompared(("n1",))
    assert meeting.is_over


def test_two_machines_of_the_same_number_are_both_told() -> None:
    meeting = ChecksMeeting(2)
    meeting.compare(ONE, 0.0)
    assert meeting.compare(dataclasses.replace(ONE, check="c"), 0.5) == MachinesCompared((), (TWICE,))
    assert meeting.compare(ONE, 1.0) == MachinesCompared((), (TWICE,))
    assert meeting.compare(ONE, 1.0 + GONE_S) == MachinesCompared(), "the other one has ended"
    assert not meeting.is_whole


def test_numbers_that_differ_are_told_and_those_that_are_not_known_are_not() -> None:
    meeting = ChecksMeeting(3)
    meeting.compare(dataclasses.replace(ONE, nproc_per_node=4, master_port=29500), 0.0)
    found = meeting.compare(dataclasses.replace(TWO, nnodes=3, nproc_per_node=0, master_port=29501), 0.5)
    assert found.refused == (
        "n0 was given --nnodes 2, this machine --nnodes 3: give the same number on all machines",
        "n0 was given --master-port 29500, this machine --master-port 29501: give the same number on all machines",
    )
