from __future__ import annotations

import pytest

from torchrelay.agent.health.gpus.devices import NOBODY, Device, choice, free, in_place, order_with, usage, visible
from torchrelay.protocol.names import WorkerId

GPUS = [Device(f"GPU-{c}", f"00000000:{n}:00.0") for c, n in (("a", 10), ("b", 11), ("c", 12))]
TREE = "/sys/devices/pci0000:00"
FOLDERS = {f"0000:{n}:00": f"{TREE}/0000:00:0{n - 9}.0/0000:{n}:00.0" for n in (10, 11, 12)}
PORTS = [Device(f"mlx5_{i}/1", f"{TREE}/0000:00:0{i + 1}.0/0000:{40 + i}:00.0", "Port") for i in range(2)]
WORKERS = [WorkerId(w) for w in ("n0.w0", "n0.w1", "n0.s0")]


@pytest.mark.parametrize(
    ("selections", "names"),
    [
        ([], "abc"),
        (["2,0"], "ca"),
        (["GPU-b"], "b"),
        (["1,7,0"], "b"),
        ([""], ""),
        (["2,1", "1,0"], "bc"),
    ],
)
def test_gpus_come_in_the_order_that_a_process_sees(selections: list[str], names: str) -> None:
    assert [g.device for g in visible(GPUS, selections)] == [f"GPU-{c}" for c in names]


def test_ranks_come_first_and_spares_get_the_gpus_behind_theirs() -> None:
    used = usage(WORKERS, GPUS, [], FOLDERS, [])
    assert used == {"n0.w0": "GPU-a", "n0.w1": "GPU-b", "n0.s0": "GPU-c"}


def test_a_spare_without_a_gpu_of_its_own_uses_none() -> None:
    assert usage(WORKERS, GPUS[:2], [], FOLDERS, [])["n0.s0"] == ""


def test_a_gpu_that_no_worker_has_used_is_free() -> None:
    assert [g.device for g in free(WORKERS[:1], GPUS)] == ["GPU-b", "GPU-c"]
    assert free(WORKERS, GPUS) == []


def test_a_further_worker_uses_the_gpu_of_an_ended_one_or_a_free_one() -> None:
    late = WorkerId("n0.r0")
    assert in_place(late, "n0.w1", WORKERS[:2], GPUS) == ["n0.w0", late]
    on_the_last = in_place(late, "GPU-c", WORKERS[:1], GPUS)
    assert on_the_last == ["n0.w0", NOBODY, late]
    assert usage(on_the_last, GPUS, [], FOLDERS, []) == {"n0.w0": "GPU-a", "n0.r0": "GPU-c"}
    assert [g.device for g in free(on_the_last, GPUS)] == ["GPU-b"]
    assert in_place(WorkerId("n0.r1"), "GPU-b", on_the_last, GPUS) == ["n0.w0", "n0.r1", late]
    assert in_place(late, "GPU-z", WORKERS, GPUS) == WORKERS
    assert in_place(late, "GPU-b", WORKERS, GPUS) == WORKERS, "it is used meanwhile"


def test_a_spare_that_takes_over_uses_its_own_gpu_in_the_place_of_the_lost_one() -> None:
    a, b, c = GPUS
    assert order_with(GPUS, c, 0) == [c, b, a]
    assert order_with(GPUS, c, 1) == [a, c, b]
    assert order_with(GPUS, b, 1) == [], "it is there already"
    assert order_with(GPUS, a, 3) == [], "such a local rank uses no GPU"


def test_a_worker_is_told_its_gpu_by_the_variable_of_the_gpus_maker() -> None:
    assert choice(GPUS, {}, GPUS[2], 0, amd=False) == {"CUDA_VISIBLE_DEVICES": "GPU-c,GPU-b,GPU-a"}
    assert choice(GPUS, {}, GPUS[2], 0, amd=True) == {"HIP_VISIBLE_DEVICES": "2,1,0"}
    assert choice(GPUS, {}, GPUS[0], 0, amd=True) == {}


def test_numbers_of_amd_are_those_among_what_the_lower_runtime_shows() -> None:
    """It is the upper runtime's variable that is set anew: the lower one's stays as the user has set it."""
    chosen = {"ROCR_VISIBLE_DEVICES": "1,2", "HIP_VISIBLE_DEVICES": "1,0", "CUDA_VISIBLE_DEVICES": "7"}
    assert choice(GPUS, chosen, GPUS[1], 0, amd=True) == {"HIP_VISIBLE_DEVICES": "0,1"}
    assert choice(GPUS, chosen, GPUS[2], 0, amd=True) == {}, "it is number 0 by the present choice"


def test_a_gpu_uses_the_port_that_is_nearest_in_the_pci_tree() -> None:
    used = usage(WORKERS, GPUS, PORTS, FOLDERS, [])
    assert used["n0.w0"] == "GPU-a mlx5_0/1"
    assert used["n0.w1"] == "GPU-b mlx5_1/1"
    assert used["n0.s0"] == "GPU-c", "behind another bridge than both ports"


def test_what_everybody_uses_is_everybodys() -> None:
    assert usage(WORKERS, [], [], {}, ["eth0"]) == {"n0.w0": "eth0", "n0.w1": "eth0", "n0.s0": "eth0"}
