from __future__ import annotations

from pathlib import Path
from typing import Any

from torchrelay.agent.config import AgentConfig
from torchrelay.agent.processes.giving_way import GivingWay
from torchrelay.agent.processes.late_processes import LateProcesses
from torchrelay.agent.processes.launch import WorkerSpec
from torchrelay.protocol.errors import FatalError
from torchrelay.protocol.messages import LateWorker, RehearserStarted, StartWorker
from torchrelay.protocol.names import NO_RANK, WorkerId

LEFT = "0.2 GiB of memory are left on this machine, and 1.0 GiB may be needed"


class FakeSupervisor:
    """Starts nothing, and notes the niceness."""

    def __init__(self, refuses: str = "") -> None:
        self.refuses = refuses
        self.children: dict[str, Any] = {}
        self.niceness: dict[str, int] = {}

    def start_late(self, spec: WorkerSpec, streams: dict[int, Any], niceness: int) -> None:
        if self.refuses:
            raise FatalError(self.refuses)
        process = type("Process", (), {"pid": 70 + len(self.children)})
        self.children[spec.worker] = type("Child", (), {"process": process, "spec": spec})
        self.niceness[spec.worker] = niceness

    def living(self) -> list[Any]:
        return list(self.children.values())


class GivesWay(GivingWay):
    """Changes no priority, and notes whose would be lowered."""

    def __init__(self) -> None:
        self.lowered: dict[str, int] = {}

    def until_needed(self, worker: WorkerId, pid: int) -> None:
        self.lowered[worker] = pid


def made(
    tmp_path: Path,
    supervisor: FakeSupervisor,
    left: str = "",
    check_steps: int = 0,
    largest: int = 0,
    giving_way: GivingWay | None = None,
) -> LateProcesses:
    config = AgentConfig(
        run_id="r",
        node="n1",
        node_rank=1,
        nnodes=2,
        nproc_per_node=2,
        spares=0,
        command=("train.py",),
        host="10.0.0.2",
        controller="10.0.0.1:29476",
        secret_file="secret",
        run_dir=str(tmp_path),
        journal_dir=str(tmp_path),
        master_addr="10.0.0.1",
        master_port=29500,
        check_steps=check_steps,
    )
    enrolled: list[WorkerSpec] = []

    def enrol(spec: WorkerSpec) -> dict[int, Any]:
        enrolled.append(spec)
        return {}

    if largest:
        supervisor.children["n1.w0"] = type("Child", (), {"process": type("Process", (), {"pid": largest})})
    no_room = lambda pid: left if pid == 9 else ""  # noqa: E731 - it is passed on alone
    return LateProcesses(config, {}, supervisor, enrol, giving_way or GivesWay(), no_room)  # type: ignore[arg-type]  # a fake


def test_what_rehearses_gives_way_to_training_and_what_takes_over_does_not(tmp_path: Path) -> None:
    supervisor = FakeSupervisor()
    late = made(tmp_path, supervisor)
    assert late.rehearse(9) == RehearserStarted("n1.t0", 70)
    assert late.take_over(StartWorker(3), is_more=True) == LateWorker("n1.r0", 3, 71)
    assert supervisor.niceness == {"n1.t0": 19, "n1.r0": 0}
    assert late.living_rehearsers() == ["n1.t0"]
    late.ended(WorkerId("n1.t0"))
    assert late.rehearsers == set(), "nothing is kept of it"
    assert late.rehearse(9) == RehearserStarted("n1.t1", 72)


def test_in_a_check_nobody_trains_meanwhile(tmp_path: Path) -> None:
    supervisor = FakeSupervisor()
    made(tmp_path, supervisor, check_steps=10).rehearse(9)
    assert supervisor.niceness == {"n1.t0": 0}


def test_none_is_started_where_there_is_no_memory_for_what_its_rank_has(tmp_path: Path) -> None:
    supervisor = FakeSupervisor()
    late = made(tmp_path, supervisor, left=LEFT)
    assert late.rehearse(9) == RehearserStarted("n1.t0", 0, LEFT)
    assert late.rehearse(8) == RehearserStarted("n1.t1", 70), "a smaller rank"


def test_a_rank_of_another_machine_is_started_only_where_there_is_memory_for_one_more(tmp_path: Path) -> None:
    late = made(tmp_path, FakeSupervisor(), left=LEFT, largest=9)
    assert late.take_over(StartWorker(3), is_more=True) == LateWorker("n1.r0", 3, 0, LEFT)
    assert late.take_over(StartWorker(3, "n1.w0"), is_more=False) == LateWorker("n1.r1", 3, 71, in_place_of="n1.w0"), (
        "its memory is free"
    )


def test_what_cannot_be_started_is_told(tmp_path: Path) -> None:
    late = made(tmp_path, FakeSupervisor("python3 cannot be started"))
    assert late.take_over(StartWorker(2), is_more=True) == LateWorker("n1.r0", 2, 0, "python3 cannot be started")
    assert late.rehearse(9) == RehearserStarted("n1.t0", 0, "python3 cannot be started")


def test_new_spares_are_counted_on_and_say_whose_place_they_have(tmp_path: Path) -> None:
    late = made(tmp_path, FakeSupervisor())
    assert late.take_over(StartWorker(NO_RANK, "n1.w0"), is_more=False) == LateWorker(
        "n1.s0", NO_RANK, 70, in_place_of="n1.w0"
    )
    assert late.take_over(StartWorker(NO_RANK, "n1.s0"), is_more=False) == LateWorker(
        "n1.s1", NO_RANK, 71, in_place_of="n1.s0"
    )
    assert late.latest == "n1.s1"


def test_a_spare_gives_way_to_training_and_a_process_for_a_rank_does_not(tmp_path: Path) -> None:
    giving_way = GivesWay()
    late = made(tmp_path, FakeSupervisor(), giving_way=giving_way)
    late.take_over(StartWorker(3), is_more=True)
    late.take_over(StartWorker(NO_RANK, idle=True), is_more=True)
    assert giving_way.lowered == {"n1.s0": 71}


def test_a_spare_that_somebody_asked_for_needs_memory_of_its_own_and_is_counted(tmp_path: Path) -> None:
    late = made(tmp_path, FakeSupervisor(), left=LEFT, largest=9)
    assert late.take_over(StartWorker(NO_RANK, idle=True, more=True), is_more=True) == LateWorker(
        "n1.s0", NO_RANK, 0, LEFT
    )
    assert late.spares_more == 0
    late = made(tmp_path, FakeSupervisor())
    assert late.take_over(StartWorker(NO_RANK, idle=True, more=True), is_more=True).pid
    assert late.spares_more == 1
