"""Which processes are launchers, and what they hand on."""

from __future__ import annotations

import os
import signal
import subprocess
import types

import pytest

from torchrelay.protocol.logs.log_lines import LogLines, LogPart
from torchrelay.protocol.names import HASH_SEED
from torchrelay.shim.adapters.elastic import ElasticHooks, _show_alive_once, with_node_rank
from torchrelay.shim.bootstrap.launcher import children_environment, is_launcher


@pytest.mark.parametrize(
    ("command", "launches"),
    [
        (["python", "/usr/local/bin/torchrun", "train.py"], True),
        (["python", "-u", "-m", "torch.distributed.run", "train.py"], True),
        (["python", "-W", "ignore", "-mtorch.distributed.launch", "train.py"], True),
        (["python", "/venv/bin/accelerate", "launch", "train.py"], True),
        (["python", "-X", "torchrun", "train.py"], False),
        (["python", "train.py", "torchrun"], False),
        (["python", "-c", "import torchrun", "torchrun"], False),
        (["python", "-m", "train", "torchrun"], False),
        (["python"], False),
    ],
)
def test_which_are(command: list[str], launches: bool) -> None:
    assert is_launcher(command) is launches


def test_children_get_what_was_taken_out_with_the_launcher_s_own_path_behind() -> None:
    taken = {"TORCHRELAY_SOCKET": "/s", "TORCHRELAY_PYTHONPATH_WAS": "/old", "TORCHRELAY_SPARE": "1"}
    assert children_environment(taken, {"PYTHONPATH": "/a:/b"}, "/site", False) == {
        "TORCHRELAY_SOCKET": "/s",
        "PYTHONPATH": "/site:/a:/b",
        "TORCHRELAY_PYTHONPATH_WAS": "/a:/b",
    }
    assert children_environment({"TORCHRELAY_SOCKET": "/s"}, {}, "/site", True) == {
        "TORCHRELAY_SOCKET": "/s",
        "PYTHONPATH": "/site",
        "TORCHRELAY_SPARE": "1",
    }
    with_seed = children_environment({"TORCHRELAY_HASH_SEED_WAS": ""}, {}, "/site", False)
    assert with_seed["PYTHONHASHSEED"] == HASH_SEED  # it was taken out of the launcher's own environment


@pytest.mark.parametrize(
    ("given", "fixed"),
    [
        (["--node-rank", "1", "x.py"], ["--node-rank", "1", "x.py"]),
        (["--node-rank", "", "x.py"], ["--node-rank", "0", "x.py"]),
        (["--node_rank=", "x.py"], ["--node_rank=0", "x.py"]),
        (["--node-rank=abcde", "x.py"], ["--node-rank=0", "x.py"]),
        (["--node-rank", "--nnodes", "2"], ["--node-rank", "0", "--nnodes", "2"]),
        (["--node-rank"], ["--node-rank", "0"]),
        (["--node-rank", __file__], ["--node-rank", "0", __file__]),
        (["--node-rank", "$(NODE_RANK)", "--x"], ["--node-rank", "0", "--x"]),
    ],
)
def test_a_number_of_the_pod_that_a_spare_does_not_have(given: list[str], fixed: list[str]) -> None:
    assert with_node_rank(given) == fixed


def test_a_torch_of_another_kind_is_left_alone_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    hooks = ElasticHooks({}, "/nothing", spare=False, log=LogLines(LogPart.SHIM))
    for name, hook in hooks.imported.items():
        module = types.ModuleType(name)
        module.LocalElasticAgent = type("LocalElasticAgent", (), {})  # type: ignore[attr-defined]  # a module of the test's own
        module.SubprocessHandler = type("SubprocessHandler", (), {})  # type: ignore[attr-defined]  # a module of the test's own
        hook(module)
    assert capsys.readouterr().err.count("not protecting what this launcher starts") == 2


def test_what_is_killed_while_torch_looks_is_found_at_the_next_look() -> None:
    """torch ends all processes of the pod for one that it finds dead."""
    with subprocess.Popen(["sleep", "60"]) as process:
        _show_alive_once(process)
        _show_alive_once(process)
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert (process.poll(), process.poll()) == (None, -signal.SIGKILL)


def test_a_spare_ends_where_it_could_not_be_kept_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    hooks = ElasticHooks({}, "/nothing", spare=True, log=LogLines(LogPart.SHIM))
    hooks.imported["torch.distributed.elastic.rendezvous.registry"](types.ModuleType("registry"))
    assert ended == [69]
