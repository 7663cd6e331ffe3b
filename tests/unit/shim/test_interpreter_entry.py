from __future__ import annotations

import importlib.util
import os
import sys
from types import ModuleType
from typing import Any

import pytest
from support.run_script import SITE

from torchrelay.protocol import names
from torchrelay.protocol.errors import FatalError, UserError
from torchrelay.protocol.logs.log_lines import LogLines, LogPart
from torchrelay.protocol.options.faults import Fault, FaultKind
from torchrelay.shim import interpreter_entry
from torchrelay.shim.agent_link.config import ShimConfig

ENVIRON = {
    names.ENV_SOCKET: "/run/agent.sock",
    names.ENV_WORKER: "n0.w1",
    names.ENV_TOKEN: "secret",
    names.ENV_JOURNAL: "/dev/shm/x",
    names.ENV_ROOTS: "/a:/b",
}


def test_the_environment_becomes_a_configuration() -> None:
    extra = {
        names.ENV_SPARE: "1",
        names.ENV_INJECT: "kill:rank=1,step=3;exit:rank=0,step=2,code=4",
        names.ENV_ADDRESS: "::1",
    }
    assert ShimConfig.from_environ({**ENVIRON, **extra}) == ShimConfig(
        socket="/run/agent.sock",
        worker="n0.w1",
        token="secret",
        journal="/dev/shm/x",
        spare=True,
        address="::1",
        faults=(Fault(FaultKind.KILL, 1, 3), Fault(FaultKind.EXIT, 0, 2, code=4)),
        roots=("/a", "/b"),
        log=LogLines(LogPart.SHIM, worker="n0.w1"),
    )
    plain = ShimConfig.from_environ(ENVIRON)
    assert (plain.spare, plain.faults, plain.address) == (False, (), "127.0.0.1")


@pytest.mark.parametrize("name", [names.ENV_SOCKET, names.ENV_WORKER, names.ENV_TOKEN, names.ENV_JOURNAL])
def test_a_missing_variable_is_named(name: str) -> None:
    with pytest.raises(FatalError, match=name):
        ShimConfig.from_environ({**ENVIRON, name: ""})


def test_a_fault_that_is_not_understood_is_the_users_error() -> None:
    with pytest.raises(UserError, match="explode"):
        ShimConfig.from_environ({**ENVIRON, names.ENV_INJECT: "explode:rank=1,step=1"})


def test_sitecustomize_takes_exactly_our_variables_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    path = SITE / "sitecustomize.py"
    for name in names.SHIM_ENV:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [str(SITE), *sys.path])
    monkeypatch.setitem(sys.modules, "sitecustomize", ModuleType("sitecustomize"))
    spec = importlib.util.spec_from_file_location("sitecustomize", path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    with pytest.raises(ModuleNotFoundError, match="sitecustomize"):
        spec.loader.exec_module(module)
    assert names.SHIM_ENV == module.OURS
    for was, left in (("", None), ("random", "random")):
        monkeypatch.setenv("PYTHONHASHSEED", names.HASH_SEED)
        monkeypatch.setenv(names.ENV_HASH_SEED_WAS, was)
        module.take_environment()
        assert os.environ.get("PYTHONHASHSEED") == left
    assert str(SITE) not in sys.path


class FailingRuntime:
    hooks = None

    def __init__(self) -> None:
        self.calls: list[str] = []

    def disable(self, reason: str) -> None:
        self.calls.append(reason)

    def torch_imported(self) -> None:
        raise KeyError("no such hook")


def test_a_torch_that_cannot_be_prepared_disables_the_shim_and_not_the_script() -> None:
    runtime: Any = FailingRuntime()
    interpreter_entry._guarded(runtime, lambda _: runtime.torch_imported())(ModuleType("torch"))
    assert runtime.calls == ["torch could not be prepared: KeyError: 'no such hook'"]


def test_nothing_is_hooked_when_the_agent_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(config: ShimConfig) -> Any:
        raise ConnectionRefusedError(config.socket)

    finders = list(sys.meta_path)
    with pytest.raises(ConnectionRefusedError, match=r"agent\.sock"):
        interpreter_entry.start(ENVIRON, connect)
    assert sys.meta_path == finders
