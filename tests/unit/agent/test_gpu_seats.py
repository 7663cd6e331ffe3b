"""Which process uses which GPU, where one is started in the midst of a job, and on machines with GPUs of both makers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from torchrelay.agent.health.monitor import MachineMonitor
from torchrelay.agent.health.probes.places import WatchedPlaces
from torchrelay.agent.node import NodeAgent
from torchrelay.protocol.messages import HealthSources, LateWorker, StartWorker
from torchrelay.protocol.names import NO_RANK, WorkerId

WORKERS = [WorkerId(w) for w in ("n0.w0", "n0.w1")]
NVIDIA = [{"device": f"GPU-{n}", "pci": f"0000:0{n}:00.0"} for n in range(3)]
AMD = [{"device": "amd-0", "pci": "0000:09:00.0"}]


class Makers(WatchedPlaces):
    """A machine with GPUs of these makers."""

    makers: tuple[str, ...] = ("nvidia",)

    def probes(self) -> dict[str, dict[str, Any]]:
        return {maker: {} for maker in self.makers}


class BothMakers(Makers):
    makers = ("nvidia", "amd")


class AmdAlone(Makers):
    makers = ("amd",)


class Machine:
    """Three GPUs that the job may use, and an agent that starts processes, unless it is told that it cannot."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.asked: list[tuple[StartWorker, bool]] = []
        self.cannot = ""
        self.monitor = MachineMonitor(
            Makers(), WORKERS, {"CUDA_VISIBLE_DEVICES": "0,1,2"}, self.told.append, lambda pid: None
        )
        self.monitor._found("nvidia")(NVIDIA)
        self.monitor.states["nvidia"] = "ok"  # from then on it tells who uses what

    def start(self, in_place_of: str) -> None:
        def take_over(order: StartWorker, *, is_more: bool) -> LateWorker:
            self.asked.append((order, is_more))
            return LateWorker("n0.s0", NO_RANK, 0 if self.cannot else 77, self.cannot, order.in_place_of)

        agent = SimpleNamespace(
            _late=SimpleNamespace(take_over=take_over),
            _monitor=self.monitor,
            _agent=SimpleNamespace(tell=self.told.append),
        )
        NodeAgent._start_worker(agent, StartWorker(NO_RANK, in_place_of))  # type: ignore[arg-type]  # it stands for one

    def free(self) -> tuple[str, ...]:
        sources = [message for message in self.told if isinstance(message, HealthSources)]
        return tuple(sources[-1].free)


def test_a_process_that_is_started_has_its_gpu_and_one_that_could_not_be_started_takes_none() -> None:
    machine = Machine()
    assert machine.free() == ("GPU-2",)
    machine.cannot = "there is no memory"
    machine.start("GPU-2")
    machine.start("n0.w1")
    assert machine.free() == ("GPU-2",)
    assert machine.monitor.gpu_index("n0.w1") == 1, "who has ended keeps its GPU until somebody has it"
    assert machine.monitor.gpu_index("n0.s0") is None
    machine.cannot = ""
    machine.start("GPU-2")
    assert machine.free() == ()
    assert machine.monitor.gpu_index("n0.s0") == 2


def test_a_process_on_a_free_gpu_is_one_more_and_one_in_the_place_of_another_is_not() -> None:
    machine = Machine()
    for place in ("GPU-2", "", "n0.w1"):
        machine.start(place)
    assert [(order.in_place_of, is_more) for order, is_more in machine.asked] == [
        ("GPU-2", True),
        ("", True),
        ("n0.w1", False),
    ]


@pytest.mark.parametrize("first", ["nvidia", "amd"])
def test_where_there_are_gpus_of_both_makers_nvidias_variable_chooses_whoever_is_found_first(first: str) -> None:
    environ = {"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-2", "ROCR_VISIBLE_DEVICES": "0"}
    monitor = MachineMonitor(BothMakers(), WORKERS, environ, lambda message: None, lambda pid: None)
    for maker in (first, "amd" if first == "nvidia" else "nvidia"):
        monitor._found(maker)({"nvidia": NVIDIA, "amd": AMD}[maker])
    index_of = {gpu.device: place for place, gpu in enumerate(monitor._gpus)}
    assert [monitor.gpu_index(worker) for worker in WORKERS] == [index_of["GPU-0"], index_of["GPU-2"]]
    assert monitor.environment(WORKERS[1], 0) == {"CUDA_VISIBLE_DEVICES": "GPU-2,GPU-0"}


def test_where_there_are_amds_alone_its_variables_choose() -> None:
    environ = {"ROCR_VISIBLE_DEVICES": "1,0"}
    monitor = MachineMonitor(AmdAlone(), WORKERS, environ, lambda message: None, lambda pid: None)
    monitor._found("amd")([*AMD, {"device": "amd-1", "pci": "0000:0a:00.0"}])
    assert [monitor.gpu_index(worker) for worker in WORKERS] == [1, 0]
    assert monitor.environment(WORKERS[1], 0) == {"HIP_VISIBLE_DEVICES": "1,0"}
