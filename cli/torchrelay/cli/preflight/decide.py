"""Is what was seen good enough? Pure: facts in, a finding with its remedy out."""

from __future__ import annotations

from collections.abc import Sequence

from torchrelay.cli.display.render import count, size
from torchrelay.cli.display.render import listed as joined
from torchrelay.cli.preflight.facts import (
    UNLIMITED,
    Clock,
    Compared,
    FolderFacts,
    Gpus,
    Memory,
    ProcessLimits,
    Reader,
    WorkerFacts,
)
from torchrelay.cli.preflight.finding import Finding, bad, warning, well
from torchrelay.protocol.names import ENV_SECRET, PROTECTED_BACKENDS

OLDEST_PYTHON = (3, 10)
JOURNALS_BYTES = 1 << 20
"""Of shared memory for each process, at the least: its journals, and their copies."""
JOURNALS_COMFORT_BYTES = 16 << 20
"""With large registries of host state, and beside data loaders with workers, which put their batches there, too."""
CHECKPOINT_BYTES = 16 << 20
"""A just-in-time checkpoint of a tiny model."""
OPEN_FILES = 1024
"""Of each process; each rank has connections to all others."""
OPEN_FILES_OF_RANK = 8
THREADS_OF_PROCESS = 64
"""Of torch, of gloo and of the shim."""
MEMORY_OF_PROCESS_BYTES = 512 << 20
"""A training process with torch imported."""


def python(w: WorkerFacts) -> Finding:
    if w.problem:
        return bad(
            f"no training process can be started: {w.problem}", "run torchrelay with the Python that has your torch"
        )
    if tuple(int(part) for part in w.python.split(".")[:2]) < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return bad(f"Python {w.python} ({w.executable}) is too old", f"use Python {oldest} or newer")
    return well(f"Python {w.python} ({w.executable})")


def torch(w: WorkerFacts) -> Finding:
    if w.torch_problem:
        return bad(
            f"torch cannot be imported: {w.torch_problem}",
            f"install torch for this Python: {w.executable} -m pip install torch",
        )
    return well(f"torch {w.torch}, built for {f'CUDA {w.cuda}' if w.cuda else 'the CPU'}")


def backend(w: WorkerFacts) -> Finding:
    known = [name for name in PROTECTED_BACKENDS if name in w.backends]
    if not known:
        have = joined(w.backends) or "none"
        return bad(
            f"this torch has none of the backends that protected jobs use: {joined(PROTECTED_BACKENDS)} (it has: {have})",
            "install a build of torch with one of them",
        )
    return well(f"backends: {joined(w.backends)}; jobs on {joined(known)} are protected")


def way_in(w: WorkerFacts) -> Finding:
    if not w.let_in:
        return bad(
            f"another sitecustomize is loaded in place of torchrelay's: {w.loaded or 'Python loads none at all'}",
            "start Python without -S, -I and -E, and let nothing import sitecustomize from a .pth file",
        )
    behind = f"; yours runs behind it ({w.shadowed})" if w.shadowed else ""
    return well(f"torchrelay is let into training processes by its sitecustomize{behind}")


def shim(w: WorkerFacts) -> Finding:
    if w.shim_problem:
        return bad(
            f"torchrelay cannot work with this torch: {w.shim_problem}",
            f"use a torch that it knows, or report this: torch {w.torch}, Python {w.python}",
        )
    return well("what torchrelay leans on in this torch and Python is there")


def shared_memory(memory: FolderFacts, processes: int) -> Finding:
    need = processes * JOURNALS_BYTES
    comfort = processes * JOURNALS_COMFORT_BYTES
    if not memory.exists:
        return warning(f"there is no {memory.path}: journals go to disk", f"mount a tmpfs on {memory.path}")
    more = (
        f"make room there (what takes it: `du -sh {memory.path}/*`), or give more: `docker run --shm-size=1g`, in a pod an "
        f"emptyDir with `medium: Memory` on {memory.path}, else `mount -o remount,size=50% {memory.path}`"
    )
    if memory.problem:
        return bad(f"nothing can be written to {memory.path}: {memory.problem}", more)
    has = f"{memory.path} has {size(memory.free_bytes)} of {size(memory.size_bytes)} free"
    what = f"the journals of {count(processes, 'process') if processes == 1 else f'{processes} processes'}"
    if memory.free_bytes < need:
        return bad(f"{has}, and {what} need {size(need)} at the least", more)
    if memory.free_bytes < comfort:
        return warning(f"{has}; {what} may need {size(comfort)}", more)
    return well(has)


def checkpoint_folder(folder: FolderFacts, option: str = "--jit-dir") -> Finding:
    """Judge the folder for just-in-time checkpoints. How large one will be is known only when training runs."""
    if folder.problem:
        return bad(f"{option} {folder.path}: {folder.problem}", f"give another folder: {option} DIR")
    has = f"{folder.path} can be written, {size(folder.free_bytes)} free"
    if folder.free_bytes < CHECKPOINT_BYTES:
        return bad(
            f"{option} {folder.path}: {size(folder.free_bytes)} free, too little for any checkpoint",
            f"make room there, or give another folder: {option} DIR",
        )
    return well(has)


def state_folder(folder: FolderFacts, problem: str) -> Finding:
    """Judge the state folder. `problem`: why it must not be used, with what to do."""
    if problem:
        return bad(problem, "")
    if folder.problem:
        return bad(f"the state folder {folder.path}: {folder.problem}", "set TORCHRELAY_STATE_DIR to another folder")
    return well(f"the state folder: {folder.path}")


def cache_folder(folder: FolderFacts | None) -> Finding:
    remedy = "set XDG_CACHE_HOME to a folder that you can write to"
    if folder is None:
        return warning("there is no folder to keep rewritten code in: every process rewrites its modules anew", remedy)
    if folder.problem:
        return warning(
            f"rewritten code cannot be kept in {folder.path} ({folder.problem}): every process rewrites its modules anew",
            remedy,
        )
    return well(f"rewritten code is kept in {folder.path}")


def open_files(limits: ProcessLimits, world_size: int) -> Finding:
    need = max(OPEN_FILES, OPEN_FILES_OF_RANK * world_size)
    if limits.open_files != UNLIMITED and limits.open_files < need:
        return warning(
            f"a process may open {limits.open_files} files; {need} are advised",
            f"`ulimit -n {need}` in front of the command",
        )
    return well(f"open files: {'no limit' if limits.open_files == UNLIMITED else limits.open_files}")


def processes(limits: ProcessLimits, wanted: int) -> Finding:
    threads = wanted * THREADS_OF_PROCESS
    for limit, used, what, remedy in (
        (
            limits.processes,
            limits.threads,
            "this user",
            f"`ulimit -u {limits.threads + threads}` in front of the command",
        ),
        (
            limits.pids,
            limits.pids_used,
            "this container",
            "give the container more (`docker run --pids-limit`, podPidsLimit)",
        ),
    ):
        if limit != UNLIMITED and limit - used < threads:
            return warning(f"{what} may have {limit} threads and has {used}; the job may need {threads} more", remedy)
    return well(f"threads: room for those of {wanted} process{'es' * (wanted > 1)}")


def memory(m: Memory, processes: int) -> Finding:
    limit = m.machine_bytes if m.limit_bytes == UNLIMITED else min(m.limit_bytes, m.machine_bytes)
    whose = "machine" if limit == m.machine_bytes else "container (cgroup)"
    left = limit - m.used_bytes
    need = processes * MEMORY_OF_PROCESS_BYTES
    if left < need:
        return warning(
            f"the {whose} has {size(max(left, 0))} of {size(limit)} memory left; {processes} training "
            f"process{'es' * (processes > 1)} take {size(need)} with torch alone",
            "give it more memory, or start fewer processes: whoever exceeds it is killed",
        )
    return well(f"memory: {size(left)} of {size(limit)} left ({whose})")


def pidfd(works: bool, release: str) -> Finding:
    if not works:
        return bad(
            f"Linux {release} has no pidfd_open, by which the end of a process is seen", "use Linux 5.3 or newer"
        )
    return well(f"Linux {release}, with pidfd")


def loopback(problem: str) -> Finding:
    if problem:
        return bad(
            f"nothing can be reached over 127.0.0.1: {problem}", "bring the loopback interface up: `ip link set lo up`"
        )
    return well("connections over loopback and unix sockets work")


def reader(r: Reader) -> Finding:
    what = "a process that hangs and does not answer"
    if not r.program:
        return warning(
            f"the stack of {what} cannot be told: py-spy is not there", "`pip install py-spy`, or `torchrelay[explain]`"
        )
    if r.problem:
        return warning(
            f"the stack of {what} cannot be told: {r.problem}",
            "allow it: `sysctl kernel.yama.ptrace_scope=0`, or give the container the capability SYS_PTRACE",
        )
    return well(f"the stack of {what} can be told ({r.program})")


def clock(c: Clock, nnodes: int) -> Finding:
    if c.now_s < c.built_s:
        return bad(
            "the clock is behind: torchrelay was installed in its future", "set the clock (`timedatectl set-ntp true`)"
        )
    if c.synchronized is False and nnodes > 1:
        return warning(
            "the clock is not synchronized; machines that differ by more than six hours refuse each other's certificates",
            "`timedatectl set-ntp true` on all machines",
        )
    return well("the clock is plausible" + (", and synchronized" if c.synchronized else ""))


def gpus(g: Gpus, w: WorkerFacts) -> Finding:
    if not g.count:
        return well("no NVIDIA GPU is visible")
    if g.missing:
        return warning(
            f"{count(g.count, 'GPU')}, whose health cannot be watched: {joined(g.missing)}",
            "install the driver's libraries, or give the container the capability `utility` (NVIDIA_DRIVER_CAPABILITIES)",
        )
    if not w.cuda and not w.problem:
        return warning(
            f"{count(g.count, 'GPU')}, but this torch is built for the CPU", "install a build of torch for CUDA"
        )
    return well(count(g.count, "GPU"))


def address(host: str, problem: str) -> Finding:
    if problem:
        return bad(
            f"{host} cannot be reached from here: {problem}",
            "check the name (--master-addr, --controller) and the network",
        )
    return well(f"{host} is known here")


def controller_port(port: int, holder: str) -> Finding:
    if holder:
        return bad(
            f"port {port}, where the other machines look for this one, is in use: {holder}",
            "end that, or give all machines another --controller-port",
        )
    return well(f"port {port} is free for the controller")


def metrics_port(host: str, port: int, problem: str) -> Finding:
    """Judge the port where Prometheus is answered: by the controller, or by the agent one port above."""
    if problem:
        return bad(
            f"{host}:{port}, where Prometheus is to be answered, cannot be used: {problem}",
            "give another --metrics-port",
        )
    return well(f"{host}:{port} is free for Prometheus")


_AGREED_ON = (
    "the script's path and content, the files that it imports, the versions of torch and Python, numbers of machines and ranks, "
    "the faults of --inject, and whether --jit-dir is one folder on all"
)


def machines(addresses: Sequence[str], c: Compared, there: str) -> list[Finding]:
    """Judge whether the job's other machines were told the same as this one. `there`: this check on another machine.

    The controller's messages say themselves what to do.
    """
    if c.nodes or c.missing:
        differs = [*(bad(text, "") for text in c.refused), *(warning(text, "") for text in c.told)]
        same = f"what all machines have to agree on is the same here and on {joined(c.nodes)} (asked at {c.address})"
        alike = [well(same)] if c.nodes and not differs else []
        return [*differs, *alike, *([_not_come(addresses, c, there)] if c.missing else [])]
    if c.strangers:
        return [
            bad(
                f"a program answers at {joined(c.strangers)} that does not know this job's secret",
                f"set the same {ENV_SECRET} on all machines; if it is another job, give this one another --controller-port",
            )
        ]
    if c.problem:
        seen = c.problem
    elif not c.address:
        seen = f"no command of this job answers at {' or '.join(addresses)}"
    else:
        seen = f"no machine has come to the controller at {c.address} yet"
    return [
        warning(
            f"{seen}. So this was not compared with other machines: {_AGREED_ON}",
            f"{'put that right; then' if c.problem else 'without `--wait 0`'} this waits for the checks of the others; on each of "
            f"them: {there}",
        )
    ]


def _not_come(addresses: Sequence[str], c: Compared, there: str) -> Finding:
    """Say which machines were waited for, and, of one that does not answer itself, where it was looked for."""
    where = "" if c.address else f" at {' or '.join(addresses)}"
    problem = f" ({c.problem})" if c.problem else ""
    have, were = ("has", "was") if len(c.missing) == 1 else ("have", "were")
    return bad(
        f"{joined(c.missing)} {have} not come{where} within {c.waited_s:g} s{problem}, and {were} not compared: {_AGREED_ON}",
        f"run the check on all machines at the same time: {there}. If it runs there, see that the address can be reached from "
        "there (firewall, --master-addr, --controller), or give it more time with --wait",
    )


def command_line(problem: str, text: str) -> Finding:
    """Judge what `options.check` found. Its messages say themselves what to do."""
    return bad(problem, "") if problem else well(text)
