"""May a controller go on without machines that it does not hear? A job must never have two controllers that go on. Pure.

From afar a machine that is cut off cannot be told from one that is gone. Of two parts of a job at most one has more than
half of its machines: that part goes on. With exactly half, as with one of two machines, a folder that all machines see decides:
the first part that writes there goes on. Without such a folder the part that is led already goes on; the other one has to wait.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum


class QuorumAnswer(Enum):
    GO_ON = "go-on"
    CLAIM = "claim"
    """If it is the first to write so into the shared folder."""
    WAIT = "wait"


@dataclass(frozen=True)
class QuorumVerdict:
    answer: QuorumAnswer
    reason: str


def may_go_on(members: Collection[str], there: Collection[str], leads: bool, shared: bool) -> QuorumVerdict:
    """Decide whether this controller may go on without the machines that it does not hear.

    `members`: the machines of the job; `there`: those that this controller hears. `leads`: it has led all of them before.
    `shared`: all members see the same folder.
    """
    count = len(set(there) & set(members))
    size = len(set(members))
    of = f"{count} of {size} machines {'is' if count == 1 else 'are'} there"
    if 2 * count > size:
        return QuorumVerdict(QuorumAnswer.GO_ON, of)
    if 2 * count < size:
        return QuorumVerdict(QuorumAnswer.WAIT, f"{of}: the others may go on without these")
    if shared:
        return QuorumVerdict(
            QuorumAnswer.CLAIM, f"{of}: whoever is the first to write so into the shared folder goes on"
        )
    if leads:
        return QuorumVerdict(QuorumAnswer.GO_ON, f"{of}, and the job is led here: the others wait for this one")
    return QuorumVerdict(
        QuorumAnswer.WAIT,
        f"{of}, and the machine that leads may be cut off: with half of the machines nobody can tell. "
        "A --jit-dir that all machines share would decide",
    )


def next_epoch(after: int, node_rank: int, nnodes: int) -> int:
    """Return the first epoch after `after` that belongs to the machine: no two machines ever use the same one."""
    return after + 1 + (node_rank - after - 1) % nnodes
