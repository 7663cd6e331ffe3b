"""What becomes of a pod whose rank lives elsewhere by now?"""

from __future__ import annotations

from dataclasses import dataclass

DELETE = "delete"
RELEASE = "release"
KEEP = "keep"


@dataclass(frozen=True)
class Leaver:
    """`planned`: its process lived until it was moved. `restarts`: a process is started there again, by the kubelet or a launcher.
    `stay`: other ranks, in other processes of the pod."""

    pod: str
    rank: int
    planned: bool
    restarts: bool
    leaves: bool
    stay: tuple[int, ...] = ()


@dataclass(frozen=True)
class LeaverVerdict:
    """`release`: its agent ends, so that the pod can; nothing is deleted."""

    action: str
    reason: str


def judge_leaver(leaver: Leaver) -> LeaverVerdict:
    who = f"pod {leaver.pod}, which had rank {leaver.rank},"
    if leaver.stay:
        return LeaverVerdict(
            KEEP, f"{who} has {'rank' if len(leaver.stay) == 1 else 'ranks'} {', '.join(map(str, leaver.stay))} too"
        )
    if leaver.leaves:
        return LeaverVerdict(RELEASE, f"{who} is being deleted")
    if leaver.planned:
        return LeaverVerdict(DELETE, f"{who} was to be left")
    if leaver.restarts:
        return LeaverVerdict(KEEP, f"{who} starts again and is a spare then")
    return LeaverVerdict(RELEASE, f"{who} is kept for its logs; it does not start again")
