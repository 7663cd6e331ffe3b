"""A process starts when its job has ended: was it meant for that job, or is it the first one of a new job of the same name?"""

from __future__ import annotations

from dataclasses import dataclass

_DONE_ONCE = ("Job", "PyTorchJob")
"""Owners that are done when their pods are; any other kind may want its pods to train once more."""


@dataclass(frozen=True)
class PodOwner:
    """The controller of a pod; `uid` is empty where there is none."""

    kind: str = ""
    uid: str = ""


@dataclass(frozen=True)
class Ended:
    """A job when it ended: `pods` that were there, by uid, and their `owners`."""

    exit_code: int
    pods: frozenset[str]
    owners: frozenset[PodOwner]


def is_late(pod: str, owner: PodOwner, ended: Ended) -> bool:
    """`pod`: its uid. One that its owner makes again after the end is late only where training went well; else it is a new try."""
    if pod in ended.pods:
        return True
    return ended.exit_code == 0 and owner.kind in _DONE_ONCE and owner in ended.owners
