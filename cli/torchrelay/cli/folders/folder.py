"""Run folders: where the jobs of this user leave what `status` and `migrate` need to find them."""

from __future__ import annotations

import json
import os
import shutil
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from torchrelay.cli.folders.journals import remove_journals, remove_what_is_left
from torchrelay.cli.folders.shown_run import shown_command
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.names import ENV_STATE_DIR

_RUN_FILE = "run.json"
_SECRET_FILE = "secret"
LONGEST_STATE_DIR_BYTES = 80
"""A unix socket's path has at most 107 bytes, and the agent's lies in the run folder."""


@dataclass(frozen=True)
class Process:
    """A process, told from a later one with the same number by its start (`psutil.Process.create_time`)."""

    pid: int
    started_s: float

    @classmethod
    def find(cls, pid: int) -> Process | None:
        """Return the process; None if it has ended already."""
        try:
            return cls(pid, psutil.Process(pid).create_time())
        except psutil.Error:
            return None

    def is_running(self) -> bool:
        try:
            process = psutil.Process(self.pid)
            return process.create_time() == self.started_s and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


@dataclass(frozen=True)
class RungTaken:
    """A way to go on after a loss: how often it was taken, and what that cost together. `steps`: done again."""

    rung: str
    times: int
    steps: int
    seconds: float


@dataclass(frozen=True)
class KnownRun:
    """One entry of the state folder, in its subfolder `folder`.

    `processes`: the command, and the controller and the agent that it started.
    """

    run_id: str
    folder: str
    controller_host: str
    controller_port: int
    command: tuple[str, ...]
    processes: tuple[Process, ...]
    restarts: tuple[str, ...] = ()
    """Of all processes so far, each in words."""
    rungs: tuple[RungTaken, ...] = ()
    """Taken so far, in all incarnations of the job."""
    name: str = ""
    working_folder: str = ""
    started_s: float = 0.0
    """By the wall clock."""

    def __str__(self) -> str:
        since = time.strftime(" since %H:%M:%S", time.localtime(self.started_s)) if self.started_s else ""
        where = f" in {self.working_folder}" if self.working_folder else ""
        return " ".join(filter(None, (self.run_id, self.name))) + f"{since}{where}: {shown_command(self.command)}"

    def is_running(self) -> bool:
        return any(process.is_running() for process in self.processes)


def state_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder that lists the running jobs of this user. Does not make it."""
    if environment.get(ENV_STATE_DIR):
        return Path(environment[ENV_STATE_DIR]).absolute()
    if environment.get("XDG_RUNTIME_DIR"):
        return Path(environment["XDG_RUNTIME_DIR"]) / "torchrelay"
    return Path(f"/tmp/torchrelay-{os.getuid()}")


def state_folder_problem(folder: Path) -> str:
    """Return why an existing folder must not be used, and what to do; empty if it may be used. Raises OSError."""
    if len(os.fsencode(folder)) > LONGEST_STATE_DIR_BYTES:
        return (
            f"the state folder {folder} has a path of more than {LONGEST_STATE_DIR_BYTES} bytes, too long for "
            f"the sockets in it: set {ENV_STATE_DIR} to a shorter one"
        )
    if not os.path.lexists(folder):
        return ""
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.getuid() or info.st_mode & 0o022:
        return (
            f"the state folder {folder} must be a folder of this user that no one else can write to: "
            f"put that right or set {ENV_STATE_DIR} to another"
        )
    return ""


def make_state_folder(folder: Path) -> None:
    """Make the folder. Raises UserError if it is not this user's alone: others could put their own jobs there."""
    try:
        problem = state_folder_problem(folder)
        if not problem:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            problem = state_folder_problem(folder)
    except OSError as e:
        raise UserError(
            f"the state folder {folder} cannot be made ({e.strerror}): set {ENV_STATE_DIR} to another"
        ) from e
    if problem:
        raise UserError(problem)


def make_run_folder(state: Path, name: str) -> Path:
    """Make a new run's folder. Raises UserError if it cannot be made, or if a job of this name runs already."""
    make_state_folder(state)
    running_jobs(state)  # removes what a dead one of the same name has left
    remove_what_is_left()
    try:
        (state / name).mkdir(mode=0o700)
    except FileExistsError as e:
        raise UserError(
            f"this machine runs the job {name} already: give each job a secret of its own, "
            "and each machine its own --node-rank"
        ) from e
    return state / name


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only this user can read, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as f:
        f.write(data)
    partial.replace(path)


def write_secret(folder: Path, secret: bytes) -> Path:
    path = folder / _SECRET_FILE
    write_private(path, secret)
    return path


def read_secret(folder: Path) -> bytes:
    """Read the run's secret. Raises UserError if the run has just ended."""
    try:
        return (folder / _SECRET_FILE).read_bytes()
    except OSError as e:
        raise UserError(f"the run {folder.name} has just ended") from e


def write_run(folder: Path, run: KnownRun) -> None:
    write_private(folder / _RUN_FILE, json.dumps(asdict(run), indent=1).encode())


def _as_run(data: dict[str, Any]) -> KnownRun:
    processes = tuple(Process(int(p["pid"]), float(p["started_s"])) for p in data.pop("processes"))
    tuples = {"command": tuple(data["command"]), "restarts": tuple(data.get("restarts", ()))}
    rungs = tuple(RungTaken(**rung) for rung in data.get("rungs", ()))
    return KnownRun(**{**data, **tuples, "processes": processes, "rungs": rungs})


def read_run(folder: Path) -> KnownRun | None:
    """Read an entry; None if there is no whole one."""
    try:
        return _as_run(json.loads((folder / _RUN_FILE).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remove_run(folder: Path) -> None:
    remove_journals(folder.name, folder)
    shutil.rmtree(folder, ignore_errors=True)


def _folders(state: Path) -> Iterable[Path]:
    try:
        return sorted(p for p in state.iterdir() if p.is_dir() and not p.is_symlink())
    except OSError:
        return ()


def running_jobs(state: Path) -> list[KnownRun]:
    """Return the jobs of this user that run. Remove what dead ones left behind."""
    found = []
    for folder in _folders(state):
        run = read_run(folder)
        if run is None:
            continue  # just being made, or not ours
        if run.is_running():
            found.append(run)
        else:
            remove_run(folder)
    return found


def one_of_each(state: Path) -> list[KnownRun]:
    """Return each running job once: several machines of one job may be on this host."""
    return list({run.run_id: run for run in running_jobs(state)}.values())


class NotRunningError(UserError):
    """No job runs that is meant."""


def choose_run(state: Path, wanted: str | None) -> KnownRun:
    """Return the wanted job, by its id or name. Raises NotRunningError if there is none, UserError if there is more than one."""
    runs = one_of_each(state)
    named = {run.run_id for run in running_jobs(state) if run.name == wanted}
    meant = [run for run in runs if wanted in (None, run.run_id)] or [run for run in runs if run.run_id in named]
    if len(meant) == 1:
        return meant[0]
    if not runs:
        raise NotRunningError(
            f"no job of this user runs on this machine (looked in {state})\nhint: torchrelay run --help"
        )
    if not meant:
        known = "\n".join(f"  {run}" for run in runs)
        raise NotRunningError(
            f"{wanted}: no job of this user on this machine has this id or name. These run:\n{known}\n"
            f"hint: torchrelay status {runs[0].run_id}"
        )
    which = "\n".join(f"  {run}" for run in meant)
    raise UserError(f"several jobs run here; name one by its id:\n{which}")
