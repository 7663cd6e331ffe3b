"""Nothing may run any more where a rank was lost: which other machine has a place."""

from __future__ import annotations

import pytest

from torchrelay.controller.decide.replacement.elsewhere import MachineWithPlaces, choose_machine, places


@pytest.mark.parametrize(
    ("machines", "node", "in_place_of"),
    [
        pytest.param(
            [MachineWithPlaces("n1", ranks=4), MachineWithPlaces("n2", ranks=2)],
            "n2",
            "",
            id="the one with fewer ranks",
        ),
        pytest.param(
            [MachineWithPlaces("n2", ranks=2), MachineWithPlaces("n1", ranks=2)], "n1", "", id="of equal ones the first"
        ),
        pytest.param(
            [MachineWithPlaces("n1", ranks=1), MachineWithPlaces("n2", "", ("n2.s0",), True, 4)],
            "n2",
            "n2.s0",
            id="a place that was left",
        ),
        pytest.param(
            [MachineWithPlaces("n1", "", (), True, 1), MachineWithPlaces("n2", "", (), True, 4, ("GPU-b", "GPU-a"))],
            "n2",
            "GPU-b",
            id="a GPU that nobody has used",
        ),
        pytest.param(
            [
                MachineWithPlaces("n1", "", ("n1.w0",), True, 9, ("GPU-b",)),
                MachineWithPlaces("n2", "", (), True, 1, ("GPU-a",)),
            ],
            "n1",
            "n1.w0",
            id="a place that was left goes before a GPU that nobody has used",
        ),
        pytest.param(
            [MachineWithPlaces("n1", "", (), True, 1), MachineWithPlaces("n2", ranks=9)],
            "n2",
            "",
            id="no GPU is shared",
        ),
        pytest.param(
            [MachineWithPlaces("n1", "its agent is away"), MachineWithPlaces("n2", ranks=9)],
            "n2",
            "",
            id="a machine that is well",
        ),
        pytest.param(
            [MachineWithPlaces("n1", "", ("n1.w3", "n1.w1"), True)], "n1", "n1.w1", id="the first of several places"
        ),
    ],
)
def test_a_new_process_is_started_where_there_is_a_place(
    machines: list[MachineWithPlaces], node: str, in_place_of: str
) -> None:
    chosen = choose_machine(3, machines)
    assert (chosen.node, chosen.in_place_of) == (node, in_place_of)
    assert node in chosen.reason


def test_where_no_machine_has_a_place_each_says_why() -> None:
    machines = [MachineWithPlaces("n2", "its memory has errors", ("n2.w0",)), MachineWithPlaces("n1", "", (), True, 8)]
    chosen = choose_machine(3, machines)
    assert chosen.node == ""
    told = "no other machine has a place for rank 3 (n1: each of its GPUs has a process; n2: its memory has errors)"
    assert chosen.reason == told


def test_a_job_on_one_machine_has_no_other() -> None:
    assert choose_machine(3, []).reason == "there is no other machine"


def test_places_are_counted_where_gpus_bound_them() -> None:
    bounded = MachineWithPlaces("n1", "", ("n1.w0", "n1.w1"), True, 2)
    assert places([bounded], 3) == 2
    assert places([bounded], 1) == 1
    assert places([bounded, MachineWithPlaces("n2", "", (), False, 8)], 3) == 3
    assert places([MachineWithPlaces("n2", "it is lost", (), False, 8)], 3) == 0
