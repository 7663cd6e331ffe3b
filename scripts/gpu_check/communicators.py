"""NCCL by itself: how fast it is here, and whether a survivor gets over peers that are killed in the middle of a collective."""

from __future__ import annotations

import functools
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import ranks
from sections import Found
from where import Where

ALIVE_S = 80.0
"""torch's watchdog and monitor end a process within about 70 s of an error, if they are let."""
TIMES = ("connect_s", "loose_s", "abort_s", "settle_s")
"""Of a killed peer: its successor's communicator; from `abort` on, until the stream is free, and until it has returned; the check
of the device after that."""
QUEUED = 20
"""Collectives that wait on the device when a peer is killed: buckets of a backward. Each takes its time to leave."""
LEAK_MIB = 64
DEADLINE_S = 150.0


def speed(where: Where) -> Found:
    size = {"LARGE_BYTES": str((1 if where.quick else 256) << 20), "ROUNDS": "5" if where.quick else "50"}
    with ranks.started(where, "collectives", 2, **size) as both:
        return Found(both[0].next_report(DEADLINE_S))


class Survivor:
    """The program `lost_peers`. It stays alive beside the other sections, and is asked at the end whether it still is."""

    def __init__(self, rank: ranks.Rank, rounds: int) -> None:
        self._rank = rank
        self._rounds = rounds

    @functools.cached_property
    def _turns(self) -> list[dict[str, Any]]:
        return [self._rank.next_report(DEADLINE_S) for _ in range(self._rounds + 1)]

    @functools.cached_property
    def _held(self) -> dict[str, Any]:
        assert self._turns
        return self._rank.next_report(DEADLINE_S)

    def killed_peers(self) -> Found:
        turns = self._turns[: self._rounds]
        facts = {
            "peers_killed": len(turns),
            "seen_to_wait": sum(turn["seen_to_wait"] for turn in turns),
            **{name: _spread([turn[name] for turn in turns]) for name in TIMES},
        }
        return Found(facts, tuple(problem for turn in turns for problem in problems_of(turn)))

    def two_groups(self) -> Found:
        turn, held = self._turns[self._rounds], self._held
        facts = {name: turn[name] for name in TIMES}
        before, after = held["before"], held["after"]
        grown = {
            "device_MiB": (after["used_device_bytes"] - before["used_device_bytes"]) / 2**20,
            "descriptors": dict(Counter(after["descriptors"]) - Counter(before["descriptors"])),
            "threads": dict(Counter(after["threads"]) - Counter(before["threads"])),
        }
        return Found({**facts, "grown_over_all_peers": grown}, (*problems_of(turn), *leaks(grown, self._rounds)))

    def alive(self) -> Found:
        assert self._held
        last = self._rank.next_report(DEADLINE_S)
        problems = () if last["works"] else ("a new communicator computes something else",)
        return Found({"alive_s": last["alive_s"]}, problems)


@contextmanager
def survivor(where: Where) -> Iterator[Survivor]:
    rounds = 3 if where.quick else 10
    settings = {
        "ROLE": "survivor",
        "ROUNDS": str(rounds),
        "LARGE_BYTES": str((1 if where.quick else 64) << 20),
        "QUEUED": str(QUEUED),
        "ALIVE_S": str(2.0 if where.quick else ALIVE_S),
    }
    with ranks.started(where, "lost_peers", 1, **settings) as started:
        yield Survivor(started[0], rounds)


def problems_of(turn: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with one killed peer."""
    name = f"peer {turn['turn']}"
    found = []
    if not turn["is_stuck"]:
        found.append(f"{name}: nothing waited for it, so nothing was tried")
    if not turn["intact"]:
        found.append(f"{name}: a tensor that had nothing to do with the collective has changed")
    return found


def leaks(grown: Mapping[str, Any], peers: int) -> list[str]:
    """Return what has grown with each killed peer."""
    found = []
    if grown["device_MiB"] > LEAK_MIB:
        found.append(f"{grown['device_MiB']:.0f} MiB of device memory were not given back")
    for what in ("descriptors", "threads"):
        found += [f"{count} {what} {name} are left" for name, count in grown[what].items() if count >= peers]
    return found


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "max": max(values)}
