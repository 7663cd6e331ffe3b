from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from torchrelay.cli import machine
from torchrelay.cli.machine import LocalMachine, address_towards, ephemeral_ports, visible_gpus
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.machine import visible_gpus as visible_gpus_of

HERE = LocalMachine()


def test_a_port_with_a_listener_is_not_free() -> None:
    port = HERE.free_port()
    assert HERE.port_is_free(port)
    with socket.create_server(("127.0.0.1", port)):
        assert not HERE.port_is_free(port)


def test_a_chosen_port_is_none_that_the_kernel_gives_to_others_meanwhile() -> None:
    ports = {HERE.free_port() for _ in range(20)}
    assert not any(port in ephemeral_ports() for port in ports)
    assert len(ports) > 1, "two jobs that start together would get the same"


def test_the_range_of_the_kernels_own_ports_is_read(tmp_path: Path) -> None:
    setting = tmp_path / "range"
    setting.write_text("40000\t40009\n")
    assert ephemeral_ports(setting) == range(40000, 40010)
    assert ephemeral_ports(tmp_path / "none") == range(32768, 61000)


def test_scripts_that_python_could_not_run_are_told_apart(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    assert "no such file" in (HERE.script_problem(str(script)) or "")
    assert "__main__.py" in (HERE.script_problem(str(tmp_path)) or "")
    script.write_text("")
    assert HERE.script_problem(str(script)) is None
    (tmp_path / "__main__.py").write_text("")
    assert HERE.script_problem(str(tmp_path)) is None


def test_a_folder_below_one_that_is_gone_is_refused_in_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert "started in is gone" in (HERE.folder_problem(Path("torchrelay-jit")) or "")
    assert HERE.folder_problem(tmp_path / "jit") is None
    os.chdir(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_a_script_without_permission_is_refused(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch(mode=0o000)
    assert "cannot be read" in (HERE.script_problem(str(script)) or "")


def test_programs_have_to_be_executable(tmp_path: Path) -> None:
    program = tmp_path / "train.sh"
    assert "no such program" in (HERE.program_problem(str(program)) or "")
    program.touch(mode=0o600)
    assert "chmod +x" in (HERE.program_problem(str(program)) or "")
    program.chmod(0o700)
    assert HERE.program_problem(str(program)) is None
    assert HERE.program_problem("sh") is None


def test_a_folder_may_be_absent_but_not_a_file(tmp_path: Path) -> None:
    assert HERE.folder_problem(tmp_path / "new" / "deep") is None
    (tmp_path / "file").write_text("")
    assert "is no folder" in (HERE.folder_problem(tmp_path / "file" / "below") or "")


@pytest.mark.parametrize(
    ("installed", "visible", "count"),
    [(4, "0,2", 2), (4, "", 0), (4, "1,-1,2", 1), (4, "0,7,1", 1), (2, "GPU-12ab", 1), (0, "0", 0)],
)
def test_a_selection_limits_the_gpus(installed: int, visible: str, count: int) -> None:
    assert visible_gpus(installed, visible) == count


@pytest.mark.parametrize(
    ("nvidia", "amd", "environ", "count"),
    [
        (4, 0, {}, 4),
        (4, 0, {"CUDA_VISIBLE_DEVICES": "0,2", "HIP_VISIBLE_DEVICES": "0"}, 2),
        (0, 4, {}, 4),
        (0, 4, {"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0,2"}, 1),
        (0, 4, {"CUDA_VISIBLE_DEVICES": "0,2"}, 2),
        (0, 4, {"ROCR_VISIBLE_DEVICES": "1,2,3", "HIP_VISIBLE_DEVICES": "0,3"}, 1),
        (0, 0, {"HIP_VISIBLE_DEVICES": "0"}, 0),
    ],
)
def test_gpus_of_either_maker_are_counted_by_the_maker_s_variables(
    nvidia: int, amd: int, environ: dict[str, str], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "_nvidia_gpus", lambda: nvidia)
    monkeypatch.setattr(machine, "_amd_gpus", lambda: amd)
    for name in visible_gpus_of.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert HERE.gpu_count() == count


def test_processors_among_the_kernel_s_nodes_are_no_gpus(tmp_path: Path) -> None:
    for number, gpu_id in enumerate(("0", "23881", "41312")):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "gpu_id").write_text(f"{gpu_id}\n")
    assert machine._amd_gpus(tmp_path) == 2
    assert machine._amd_gpus(tmp_path / "none") == 0


def test_the_own_address_is_the_one_that_faces_the_peer() -> None:
    assert address_towards("127.0.0.1") == "127.0.0.1"
    with pytest.raises(UserError, match="cannot be reached"):
        address_towards("no-such-host.invalid")
