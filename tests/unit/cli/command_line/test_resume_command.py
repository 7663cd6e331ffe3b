"""The command that goes on from a checkpoint has all that the first one had."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

import pytest

from torchrelay.cli.__main__ import main
from torchrelay.cli.app import scripts
from torchrelay.cli.command_line.configs import resume_command
from torchrelay.cli.command_line.given import GivenOptions

OTHERWISE = GivenOptions(
    "my train.py",
    ("--lr", "0.1", "--spares", "9"),
    nproc_per_node="4",
    nnodes="2",
    node_rank=1,
    master_addr="node0",
    master_port=29600,
    module=True,
    no_python=True,
    standalone=True,
    redirects="3",
    tee="0:1",
    log_dir=Path("logs"),
    role="trainer",
    spares=2,
    refill=False,
    respawn_limit=5,
    buddy_every=7,
    buddy_sync=True,
    rehearse_every="90s",
    hang_timeout="5m",
    lease="45s",
    machine_wait="2h",
    cost_limit_percent=25.0,
    transfer_encryption="off",
    watch=("loss", "grad-norm:action=retry,over=10"),
    inject=("kill:rank=1,step=3",),
    events=Path("events.jsonl"),
    json_summary=True,
    resume=Path("old"),
    jit_dirs=(Path("first place"), Path("second")),
    incident_journals=True,
    health_policy=Path("policy.yaml"),
    health_observe=True,
    watch_folders=(Path("ckpt"), Path("dumps")),
    node_notices=(Path("/etc/notice"),),
    dcgm="off",
    replay=Path("timeline"),
    max_restarts=0,
    controller="node0:29476",
    controller_port=29477,
    metrics_port="0.0.0.0:29480",
    json_file=Path("summary.json"),
    quiet=True,
    verbose=True,
    log_format="json",
    name="pretrain",
    notify="https://host/hook",
    notify_on="ended",
    notify_format="slack",
    notify_template=Path("body.json"),
)
NOT_AGAIN = {"inject": (), "replay": None}
"""Faults that were asked for: their steps may be over."""


def typed(command: str, monkeypatch: pytest.MonkeyPatch) -> GivenOptions:
    """What `torchrelay` is given when the command is pasted into a shell."""
    launched: list[GivenOptions] = []
    monkeypatch.setattr(scripts, "_launch", lambda given: launched.append(given) or 0)
    words = shlex.split(command)
    with pytest.raises(SystemExit):
        main(words[words.index("run") :])
    return launched[0]


def test_every_option_has_another_value_here_than_by_default() -> None:
    same = [f.name for f in dataclasses.fields(GivenOptions) if getattr(OTHERWISE, f.name) == f.default]
    assert [name for name in same if name not in ("script", "script_args")] == []


def test_every_option_comes_back_when_the_command_is_pasted(monkeypatch: pytest.MonkeyPatch) -> None:
    pasted = typed(resume_command(OTHERWISE, "/jit/1 2"), monkeypatch)
    assert pasted == dataclasses.replace(OTHERWISE, resume=Path("/jit/1 2"), **NOT_AGAIN)


def test_what_was_not_given_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    command = resume_command(GivenOptions("train.py"), "/jit/1")
    assert command.endswith("run --resume /jit/1 train.py")
    assert typed(command, monkeypatch) == GivenOptions("train.py", resume=Path("/jit/1"))
