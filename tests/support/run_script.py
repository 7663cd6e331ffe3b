"""Runs one command with plain Python, and with the shim in it, and hands back all that can be seen from outside."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.fake_agent import FakeAgent
from torchrelay.protocol import names

REPOSITORY = Path(__file__).parents[2]
SHIM_ROOTS = (REPOSITORY / "shim", REPOSITORY / "protocol")
SITE = REPOSITORY / "shim/torchrelay/shim/site"
INERT = Path(__file__).parent / "inert"


@dataclass(frozen=True)
class Outcome:
    """`status` as subprocess gives it: negative for death by a signal."""

    stdout: str
    stderr: str
    status: int
    calls: list[str] = field(default_factory=list, compare=False)
    reports: list[object] = field(default_factory=list, compare=False)


def interpreters() -> list[str]:
    """The running interpreter, and one of each other Python version that pyenv has."""
    found = {"{}.{}".format(*sys.version_info[:2]): sys.executable}
    for python in sorted(Path.home().glob(".pyenv/versions/*/bin/python")):
        major, minor, *_ = python.parts[-3].split(".")
        if (int(major), int(minor)) >= (3, 10):
            found.setdefault(f"{major}.{minor}", str(python))
    return list(found.values())


def shim_environment(folder: Path, *, inert: bool = True, pythonpath: str | None = None) -> dict[str, str]:
    """What an agent that listens on `folder/agent.sock` sets; `pythonpath` is the user's."""
    journal = folder / "journal"
    journal.mkdir(exist_ok=True)
    sites = [*([str(INERT)] if inert else []), str(SITE), *([pythonpath] if pythonpath else [])]
    return {
        names.ENV_SOCKET: str(folder / "agent.sock"),
        names.ENV_WORKER: "n0.w0",
        names.ENV_TOKEN: "token",
        names.ENV_JOURNAL: str(journal),
        names.ENV_ADDRESS: "127.0.0.1",
        names.ENV_ROOTS: os.pathsep.join(map(str, SHIM_ROOTS)),
        "PYTHONPATH": os.pathsep.join(sites),
        **({names.ENV_PYTHONPATH_WAS: pythonpath} if pythonpath else {}),
    }


def run_plain(
    command: Sequence[str], folder: Path, *, stdin: str = "", env: Mapping[str, str] | None = None
) -> Outcome:
    return _run(command, folder, stdin, env or {})


def run_with_shim(
    command: Sequence[str],
    folder: Path,
    *,
    stdin: str = "",
    inert: bool = True,
    env: Mapping[str, str | None] | None = None,
    pythonpath: str | None = None,
    refuse: bool = False,
) -> Outcome:
    """`command` in `folder`, as a training process of a fake agent, which may `refuse` it.

    `pythonpath` is the user's; a variable that is None in `env` is left out.
    """
    place = folder.parent / "agent"
    place.mkdir(exist_ok=True)
    for left in (place / "agent.sock", place / "journal/calls"):
        left.unlink(missing_ok=True)
    variables = {**shim_environment(place, inert=inert, pythonpath=pythonpath), **(env or {})}
    with FakeAgent(place / "agent.sock", refuse=refuse) as agent:
        outcome = _run(command, folder, stdin, {k: v for k, v in variables.items() if v is not None})
    calls = place / "journal/calls"
    lines = calls.read_text().splitlines() if calls.exists() else []
    return Outcome(outcome.stdout, outcome.stderr, outcome.status, lines, agent.reports)


def _run(command: Sequence[str], folder: Path, stdin: str, env: Mapping[str, str]) -> Outcome:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("TORCHRELAY_", "PYTHON"))}
    done = subprocess.run(
        command, cwd=folder, env={**clean, **env}, input=stdin, capture_output=True, text=True, timeout=120, check=False
    )
    return Outcome(done.stdout, done.stderr, done.returncode)
