"""Which workload does a job's TrainingJob go with, when that is deleted?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Workload:
    """What made a pod; `uid` is empty where nobody did."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" if self.uid else "no workload"


@dataclass(frozen=True)
class Belongs:
    to: Workload
    reason: str


def judge_belongs(made_by: Iterable[Workload]) -> Belongs:
    """`made_by`: of each pod that is no spare.

    Only to one that made them all: of several, each may end and be cleared away while ranks live on in spares.
    """
    makers = set(made_by)
    if len(makers) == 1 and (only := next(iter(makers))).uid:
        return Belongs(only, f"all of its pods are of {only}")
    if not makers or makers == {Workload()}:
        return Belongs(Workload(), "nobody owns its pods")
    return Belongs(Workload(), f"its pods are of {len(makers)} workloads, which end one by one")
