"""Several training processes in one pod: how many its launcher starts there, and whether their ranks lie as they have to."""

from __future__ import annotations

from collections.abc import Mapping

_COUNT = "LOCAL_WORLD_SIZE"
_BY_TORCHRUN = "TORCHELASTIC_RUN_ID"
_MOST_DIGITS = 6


def says_several(launch: Mapping[str, str]) -> bool:
    return launch.get(_COUNT, "1") != "1"


def is_torchruns(launch: Mapping[str, str]) -> bool:
    """Return whether torchrun started the process.

    torchrun's agent can start one process again without the others. Whether other launchers can is not known.
    """
    return _BY_TORCHRUN in launch


def local_world_size(launch: Mapping[str, str]) -> int:
    """Return how many processes of the job are in each pod, as one of them was told. 1 if the launcher is not torchrun."""
    count = launch.get(_COUNT, "")
    return max(1, _number(count)) if is_torchruns(launch) else 1


def local_rank(launch: Mapping[str, str]) -> int:
    """Return the local rank; -1 if the environment does not name it, or names a number that is far too large."""
    return _number(launch.get("LOCAL_RANK", ""))


def _number(said: str) -> int:
    """Return the number; -1 for a text that is none, or a number far too large."""
    return int(said) if said.isdecimal() and len(said) <= _MOST_DIGITS else -1


def place(launch: Mapping[str, str]) -> int:
    """Return the number of this process among several in its pod; 0 if it is alone."""
    return max(0, local_rank(launch)) if says_several(launch) else 0


def misfit(launch: Mapping[str, str], rank: int, world_size: int, processes: int) -> str:
    """Return why a rank would not be in the place where it has to be; empty if nothing is wrong.

    `rank`: the rank of this process. Below 0, the question is about any rank that the process could take over.
    `processes`: how many there are in each of the job's pods.
    """
    if not is_torchruns(launch):
        return ""
    if world_size % (here := local_world_size(launch)):
        return f"its pod has {here} of {world_size} ranks: all pods of a job must have as many training processes"
    if here != processes:
        return f"its pod has {here} training processes, and others of the job have {processes}: all must have as many"
    if rank >= 0 and processes > 1 and local_rank(launch) != rank % processes:
        return (
            f"rank {rank} has the local rank {local_rank(launch)}, and not {rank % processes} as among {processes} in each pod "
            "(torchrun's --virtual-local-rank does that)"
        )
    return ""
