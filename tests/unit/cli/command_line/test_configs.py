from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from torchrelay.agent.config import AgentConfig
from torchrelay.agent.config import load_config as load_agent_config
from torchrelay.cli.command_line import configs, program
from torchrelay.cli.command_line.checked import check
from torchrelay.cli.command_line.given import GivenOptions
from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.machine import LocalMachine
from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.config import load_config as load_controller_config
from torchrelay.protocol.options.handed_on import AgentOptions, ControllerOptions, JobOptions


@pytest.fixture(autouse=True)
def _on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "own_command", lambda: ["torchrelay"])


def options(**changes: Any) -> RunOptions:
    given = dataclasses.replace(GivenOptions(__file__, ("--lr", "0.1"), nproc_per_node="2"), **changes)
    return check(given, LocalMachine(), {"TORCHRELAY_SECRET": "0123456789abcdef"})


def agent(run: RunOptions) -> dict[str, Any]:
    return configs.agent_config(run, "ab", Path("/state/ab"), Path("/state/ab/secret"), "127.0.0.1:5", "127.0.0.1")


def test_the_agent_is_told_script_arguments_and_faults_as_given() -> None:
    config = agent(options(spares=1, inject=("kill:rank=1,step=3",), tee="0:3,1:1", redirects="2"))
    assert config["command"] == [__file__, "--lr", "0.1"]
    assert config["python"] == sys.executable
    assert config["inject"] == ["kill:rank=1,step=3,phase=forward"]
    assert (config["spares"], config["tee"], config["redirects"], config["resume"]) == (1, "0:3,1:1", "2", False)


def test_modules_and_programs_are_started_as_torchrun_does() -> None:
    assert agent(options(script="pkg.train", module=True))["command"] == ["-m", "pkg.train", "--lr", "0.1"]
    program = agent(options(script="sh", no_python=True))
    assert (program["command"], program["python"]) == (["sh", "--lr", "0.1"], "")


def test_the_controller_of_one_machine_listens_to_that_machine_only(tmp_path: Path) -> None:
    one = configs.controller_config(options(resume=tmp_path), "ab", Path("s"), Path("a"))
    assert (one["listen_host"], one["listen_port"], one["resume_dir"]) == ("127.0.0.1", 0, str(tmp_path))
    several = options(nnodes="2", master_addr="node0", node_rank=1, controller_port=40404)
    assert configs.controller_config(several, "ab", Path("s"), Path("a"))["listen_host"] == "0.0.0.0"


def test_the_command_to_go_on_has_the_flags_but_not_the_faults() -> None:
    given = GivenOptions(
        "my train.py",
        ("--lr", "0.1", "--inject", "x"),
        nproc_per_node="3",
        spares=1,
        inject=("kill:rank=0,step=1",),
        resume=Path("/old"),
        json_summary=True,
    )
    assert configs.resume_command(given, "/new") == (
        "torchrelay run --resume /new --nproc-per-node 3 --spares 1 --json 'my train.py' --lr 0.1 --inject x"
    )
    module = GivenOptions("pkg.train", module=True, tee="3")
    assert configs.resume_command(module, "/new") == "torchrelay run --resume /new --module --tee 3 pkg.train"


def test_a_fake_machine_is_made_for_faults_of_devices_alone() -> None:
    assert agent(options(inject=("ecc:rank=1,step=3",)))["machine"].endswith("/machine")
    assert agent(options(inject=("kill:rank=1,step=3",)))["machine"] == ""


def other(run: RunOptions, keys: type[JobOptions]) -> RunOptions:
    """Return the same run with another value for each option of `keys`."""
    changed: dict[str, Any] = {}
    for number, field in enumerate(dataclasses.fields(keys), start=7):
        value = getattr(run if hasattr(run, field.name) else run.given, field.name)
        if isinstance(value, bool):
            changed[field.name] = not value
        elif isinstance(value, (int, float)):
            changed[field.name] = value + number
        elif isinstance(value, tuple):
            changed[field.name] = (Path(f"/{field.name}"), Path("/more"))
        else:
            changed[field.name] = Path(f"/{field.name}") if value is None else f"{value} {number}"
    own = {name: value for name, value in changed.items() if hasattr(run, name)}
    given = {name: value for name, value in changed.items() if name not in own}
    return dataclasses.replace(run, **own, given=dataclasses.replace(run.given, **given))


def values(config: object, keys: type[JobOptions]) -> dict[str, Any]:
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(keys)}


def test_every_option_that_is_handed_on_reaches_the_agent(tmp_path: Path) -> None:
    def read(run: RunOptions) -> AgentConfig:
        file = tmp_path / "agent.json"
        file.write_text(json.dumps(agent(run)))
        return load_agent_config(file)

    run = options(nnodes="20", master_addr="node0")
    before, after = (values(read(each), AgentOptions) for each in (run, other(run, AgentOptions)))
    assert [name for name, value in before.items() if after[name] == value] == []
    assert (after["buddy_sync"], after["replay"], after["jit_dirs"]) == (True, "/replay", ("/jit_dirs", "/more"))


def test_every_option_that_is_handed_on_reaches_the_controller(tmp_path: Path) -> None:
    def read(run: RunOptions) -> ControllerConfig:
        file = tmp_path / "controller.json"
        file.write_text(json.dumps(configs.controller_config(run, "ab", Path("s"), Path("a"))))
        return load_controller_config(file)

    run = options(nnodes="20", master_addr="node0")
    before, after = (values(read(each), ControllerOptions) for each in (run, other(run, ControllerOptions)))
    assert [name for name, value in before.items() if after[name] == value] == []
    assert (after["buddy_sync"], after["health_policy"], after["health_observe"]) == (True, "/health_policy", True)
