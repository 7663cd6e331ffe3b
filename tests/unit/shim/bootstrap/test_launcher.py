"""Which processes are launchers, and what they hand on."""

from __future__ import annotations

import os
import signal
import subprocess
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.api import SignalException

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
def test_a_launcher_is_known_by_its_command(command: list[str], launches: bool) -> None:
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


def odd(*_: Any) -> Any:
    raise ZeroDivisionError("a bug")


class OddMapping(Mapping[str, str]):
    __getitem__ = __iter__ = __len__ = odd


class Hooked:
    """A launcher of torch's with our hooks: its agent, the others that it meets, and the process of one rank."""

    def __init__(
        self, tmp_path: Path, environment: Mapping[str, str] = MappingProxyType({}), spare: bool = False
    ) -> None:
        mark = tmp_path / "protected"
        mark.touch()
        self.hooks = ElasticHooks(environment, str(mark), spare, LogLines(LogPart.SHIM))
        self.begun: list[str] = []

        class Handler:
            def _popen(self, args: Any, env: Mapping[str, str]) -> Any:
                started.append(dict(env))
                return SimpleNamespace(pid=100 + len(started), args=args, poll=lambda: -9)

        class Agent:
            def _monitor_workers(self, group: Any) -> str:
                return "torch's own answer"

            def _exit_barrier(self) -> str:
                return "met at the end"

        class Rendezvous:
            def num_nodes_waiting(self) -> int:
                return 7

            def shutdown(self) -> str:
                return "closed"

            def _stop_heartbeats(self) -> None:
                beats.append("stop")

            def _start_heartbeats(self) -> None:
                beats.append("start")

        started: list[dict[str, str]] = []
        beats: list[str] = []
        self.started, self.beats = started, beats
        processes, agents = types.ModuleType("processes"), types.ModuleType("agents")
        processes.SubprocessHandler, agents.LocalElasticAgent = Handler, Agent  # type: ignore[attr-defined]  # modules of the test's
        for name, module in (("subprocess_handler", processes), ("local_elastic_agent", agents)):
            next(hook for of, hook in self.hooks.imported.items() if of.endswith(name))(module)
        self.handler, self.agent, self.rendezvous = Handler(), Agent(), Rendezvous()
        self.handler.proc = self.handler._popen(["train.py"], {"RANK": "0"})  # type: ignore[attr-defined]  # torch's has one
        self.worker = SimpleNamespace(id=self.handler.proc.pid)  # type: ignore[attr-defined]  # as above
        self.agent._pcontext = SimpleNamespace(subprocess_handlers={0: self.handler})  # type: ignore[attr-defined]  # as above
        self.group = SimpleNamespace(spec=SimpleNamespace(rdzv_handler=self.rendezvous), workers=[self.worker])

    def look(self) -> str:
        return self.agent._monitor_workers(self.group)

    def is_as_torch_made_it(self) -> bool:
        waiting, closed = self.rendezvous.num_nodes_waiting(), self.rendezvous.shutdown()
        return (waiting, closed, self.agent._exit_barrier()) == (7, "closed", "met at the end")


def test_a_process_that_was_killed_in_a_protected_job_is_started_again(tmp_path: Path) -> None:
    hooked = Hooked(tmp_path, {"OURS": "1"})
    assert hooked.look() == "torch's own answer"
    assert hooked.started == [{"RANK": "0", "OURS": "1"}, {"RANK": "0", "TORCHRELAY_SPARE": "1", "OURS": "1"}]
    assert hooked.worker.id == 102
    assert (hooked.rendezvous.num_nodes_waiting(), hooked.beats) == (0, ["stop"])


def test_a_process_is_started_as_torch_does_it_where_ours_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hooked = Hooked(tmp_path, OddMapping())
    assert hooked.started == [{"RANK": "0"}]
    assert capsys.readouterr().err.count("not protecting what this launcher starts: ZeroDivisionError: a bug") == 1


def test_a_process_that_cannot_be_noted_is_started_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hooked = Hooked(tmp_path)
    hooked.hooks._given = SimpleNamespace()  # type: ignore[assignment]  # takes nothing
    assert hooked.handler._popen(["train.py"], {}).pid == 102
    assert "will not be started again by torchrelay: TypeError" in capsys.readouterr().err


def test_a_spare_ends_where_what_it_starts_would_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr("os._exit", ended.append)
    Hooked(tmp_path, OddMapping(), spare=True)
    assert ended == [69]


def others_cannot_be_left_alone(hooked: Hooked) -> None:
    hooked.rendezvous._stop_heartbeats = odd  # type: ignore[method-assign]  # a bug, for this test


def nothing_is_known_of_the_others(hooked: Hooked) -> None:
    hooked.group.spec = None


def no_process_can_be_started(hooked: Hooked) -> None:
    hooked.handler._popen = odd  # type: ignore[method-assign]  # as where a limit is reached


def nothing_is_known_of_the_process(hooked: Hooked) -> None:
    hooked.hooks._given.clear()


def there_is_no_such_worker(hooked: Hooked) -> None:
    hooked.group.workers.clear()


@pytest.mark.parametrize(
    ("fails", "beats"),
    [
        (others_cannot_be_left_alone, []),
        (nothing_is_known_of_the_others, []),
        (no_process_can_be_started, ["stop", "start"]),
        (nothing_is_known_of_the_process, ["stop", "start"]),
        (there_is_no_such_worker, ["stop", "start"]),
    ],
)
def test_a_fault_of_ours_while_torch_looks_leaves_everything_to_torch_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fails: Callable[[Hooked], None], beats: list[str]
) -> None:
    hooked = Hooked(tmp_path)
    killed = hooked.handler.proc  # type: ignore[attr-defined]  # torch's has one
    fails(hooked)
    assert [hooked.look(), hooked.look()] == ["torch's own answer"] * 2
    assert hooked.is_as_torch_made_it()
    assert hooked.beats == beats
    assert (hooked.handler.proc, hooked.worker.id) == (killed, killed.pid)  # type: ignore[attr-defined]  # as above
    assert capsys.readouterr().err.count("this launcher goes on as without torchrelay") == 1


def test_a_signal_that_is_to_end_the_launcher_ends_it_wherever_it_is(tmp_path: Path) -> None:
    hooked = Hooked(tmp_path)

    def signalled() -> None:
        raise SignalException("SIGTERM", signal.SIGTERM)

    hooked.rendezvous._stop_heartbeats = signalled  # type: ignore[method-assign]  # for this test
    with pytest.raises(SignalException):
        hooked.look()


def test_a_module_of_torch_s_that_something_of_ours_fails_at_is_left_as_it_is(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Odd(types.ModuleType):
        LocalElasticAgent = SubprocessHandler = property(odd)

    hooks = ElasticHooks({}, "/nothing", spare=False, log=LogLines(LogPart.SHIM))
    for name, hook in hooks.imported.items():
        hook(Odd(name))
    assert capsys.readouterr().err.count("not protecting what this launcher starts: ZeroDivisionError") == 2
