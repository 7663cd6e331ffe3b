from __future__ import annotations

from pathlib import Path

from torchrelay.agent.health.gpus.dcgm import host_engine, read_metrics

EXPORTED = """\
# HELP DCGM_FI_DEV_SM_CLOCK SM clock frequency (in MHz).
# TYPE DCGM_FI_DEV_SM_CLOCK gauge
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-0"} 1410
# HELP DCGM_FI_DEV_PCIE_REPLAY_COUNTER Total number of PCIe retries.
# TYPE DCGM_FI_DEV_PCIE_REPLAY_COUNTER counter
DCGM_FI_DEV_PCIE_REPLAY_COUNTER{gpu="0",UUID="GPU-0",pci_bus_id="00000000:10:00.0",modelName="NVIDIA H100"} 7
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{gpu="0",UUID="GPU-0"} 9223372036854775794
DCGM_FI_DEV_ECC_SBE_VOL_TOTAL{gpu="0",UUID="GPU-0"} 2147483632
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-1",GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"} 40
DCGM_FI_DEV_GPU_TEMP_CELSIUS{gpu="0",UUID="GPU-0"} 41
DCGM_EXP_GPU_HEALTH_STATUS{gpu="0",UUID="GPU-0",health_watch="MEM",health_error_code=""} 20
DCGM_EXP_GPU_HEALTH_STATUS{gpu="0",UUID="GPU-0",health_watch="PCIE",health_error_code=""} 0
"""


def test_what_is_of_use_is_taken_and_what_is_not_known_left_out() -> None:
    gpus = read_metrics(EXPORTED)
    assert list(gpus) == ["GPU-0"], "a MIG instance is no GPU"
    gpu = gpus["GPU-0"]
    assert gpu.values == {"DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 7.0, "DCGM_FI_DEV_GPU_TEMP": 41.0}
    assert gpu.watches == {"MEM": 20.0, "PCIE": 0.0}
    assert (gpu.pci, gpu.name) == ("00000000:10:00.0", "NVIDIA H100")


def test_a_page_of_something_else_has_no_gpus() -> None:
    assert read_metrics("<html>hello</html>") == {}


def test_a_host_engine_is_found_by_its_name(tmp_path: Path) -> None:
    assert host_engine(tmp_path) == ""
    for pid, name in ((7, "bash"), (42, "nv-hostengine")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "comm").write_text(name + "\n")
    assert host_engine(tmp_path) == "nv-hostengine runs here (pid 42)"
