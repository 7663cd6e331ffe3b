"""What checks are decided from: plain records of what was seen on the machine."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

UNLIMITED = -1


@dataclass(frozen=True)
class FolderFacts:
    """A folder. `problem`: why nothing can be written there (or where it would be made); empty if something was written.

    Sizes are those of its file system.
    """

    path: Path
    problem: str = ""
    free_bytes: int = 0
    size_bytes: int = 0
    exists: bool = True


@dataclass(frozen=True)
class Compared:
    """What was said at the first of the addresses where anybody answers, by the job's controller or among its checks.

    `address`: empty where nobody does. `strangers`: where a program answers that does not know the job's secret. `problem`: why the
    controller did not compare. `missing`: machines whose checks have not come, and `waited_s`: within which time.
    """

    address: str = ""
    nodes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    strangers: tuple[str, ...] = ()
    problem: str = ""
    missing: tuple[str, ...] = ()
    waited_s: float = 0.0


@dataclass(frozen=True)
class ProcessLimits:
    """Limits of this process, UNLIMITED where there is none. `threads`: of this user, as the limit on processes counts them."""

    open_files: int
    processes: int
    threads: int = 0
    pids: int = UNLIMITED
    """Of the container."""
    pids_used: int = 0


@dataclass(frozen=True)
class Memory:
    """Memory of the machine and the container. `limit_bytes`: the container's, UNLIMITED if there is none."""

    limit_bytes: int
    used_bytes: int
    machine_bytes: int


@dataclass(frozen=True)
class Reader:
    """Whether the stack of a process that does not answer can be read from outside. `problem`: why not."""

    program: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Clock:
    """The machine's clock. `now_s`: time of day. `synchronized`: None if not known.

    `built_s`: when this torchrelay was installed, which is past.
    """

    now_s: float
    built_s: float
    synchronized: bool | None = None


@dataclass(frozen=True)
class WorkerFacts:
    """What a training process would find, from one that was started like it. `problem`: why it could not be."""

    problem: str = ""
    python: str = ""
    executable: str = ""
    torch: str = ""
    torch_problem: str = ""
    cuda: str = ""
    """That torch was built for; empty: none."""
    backends: tuple[str, ...] = ()
    let_in: bool = False
    """Whether our `sitecustomize` was the one that Python loaded."""
    loaded: str = ""
    """The one that Python loaded in its place."""
    shadowed: str = ""
    """The user's own, which runs behind ours."""
    shim_problem: str = ""


@dataclass(frozen=True)
class Gpus:
    """What the drivers tell of GPUs. `missing`: libraries that could not be loaded, with the reason."""

    count: int = 0
    missing: tuple[str, ...] = field(default=())
