"""`python -m torchrelay.controller.health.simulate DAYS SEED`: how often does healthy noise lead to something being done?

Plays the noise of a healthy cluster through the judge and the search for hangs, on virtual time, and prints one JSON object.
A false alarm is a verdict that would move or end a rank, or end the job. Rates are on the high side of healthy ones:

- temperature: comes within 11 to 19 degrees of the slowdown threshold, up and down, and once a day for 20 s within 3 to 9
- single corrected memory errors: one a day for each device; a burst of up to 60 once in 30 days
- one link flap for each port in 5 days; its link is down for up to 2 s
- symbol errors: up to 3, twice a day; PCIe replays: up to 5, four times a day
- XID 43 or 45 alone, once in 10 days; the recovery action `none` when the driver starts
- hardware slowdown for a moment, twice a day
- a kubelet that does not answer for up to 40 s, once a week for each node; memory pressure for minutes, once a day
- processes that wait for a processor for up to 90 % of the time, for minutes, four times a day
- evaluations and saves of a second to 9 minutes on one rank while the others wait, four a day for each node
"""

from __future__ import annotations

import heapq
import json
import random
import sys
from collections.abc import Iterator
from itertools import count

from torchrelay.controller.config import Policy
from torchrelay.controller.decide.detection.hang import Vital, find_culprit
from torchrelay.controller.health.judge import HealthJudge
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.health.history import SeenEvidence
from torchrelay.protocol.health.policy_file import default_policy
from torchrelay.protocol.words.positions import RankPhase

DAY_S = 86400.0
DEVICES = 8
ACTIONS = (k.MIGRATE, k.REPLACE, k.STOP)

Noise = tuple[float, str, float, int]
"""Seconds, kind, value, code."""


def device_noise(rng: random.Random, days: float) -> Iterator[Noise]:
    """Of one GPU, not in order."""
    for at_s in _times(rng, days, 24):
        for step, margin in enumerate((18.0, 14.0, 11.0 + rng.random() * 4, 16.0, 20.0)):
            yield at_s + step * rng.uniform(5, 60), k.TEMPERATURE_MARGIN, margin, 0
    for at_s in _times(rng, days, 1):
        yield at_s, k.TEMPERATURE_MARGIN, rng.uniform(3, 9), 0
        yield at_s + 20, k.TEMPERATURE_MARGIN, 20.0, 0
    for at_s in _times(rng, days, 1):
        yield at_s, k.ECC_CORRECTED, 1.0, 0
    for at_s in _times(rng, days, 1 / 30):
        yield at_s, k.ECC_CORRECTED, float(rng.randint(1, 60)), 0
    for at_s in _times(rng, days, 4):
        yield at_s, k.PCIE_REPLAYS, float(rng.randint(1, 5)), 0
    for at_s in _times(rng, days, 2):
        yield at_s, k.HW_SLOWDOWN, 1.0, 0
    for at_s in _times(rng, days, 1 / 20):
        yield at_s, k.XID, 1.0, 43
    for at_s in _times(rng, days, 1 / 20):
        yield at_s, k.XID, 1.0, 45
    yield 0.0, k.RECOVERY_ACTION, 1.0, 0


def port_noise(rng: random.Random, days: float) -> Iterator[Noise]:
    for at_s in _times(rng, days, 1 / 5):
        yield at_s, k.LINK_DOWN, 1.0, 0
        yield at_s + rng.uniform(0.2, 2.0), k.LINK_DOWN, 0.0, 0
        yield at_s, k.LINK_FLAP, 1.0, 0
    for at_s in _times(rng, days, 2):
        yield at_s, "port-symbol_error", float(rng.randint(1, 3)), 0


def node_noise(rng: random.Random, days: float) -> Iterator[SeenEvidence]:
    """Of the machine as a whole."""
    blips = (
        (1 / 7, "condition:Ready", "condition Ready=Unknown", 40.0),
        (1, "condition:MemoryPressure", "condition MemoryPressure=True", 600.0),
    )
    for per_day, device, detail, most_s in blips:
        for at_s in _times(rng, days, per_day):
            yield SeenEvidence(k.NODE_CONDITION, at_s, "n0", device, detail=detail)
            yield SeenEvidence(k.NODE_CONDITION, at_s + rng.uniform(1, most_s), "n0", device, value=0.0, detail=detail)
    for at_s in _times(rng, days, 4):
        yield SeenEvidence(k.HOST_CPU, at_s, "n0", value=rng.uniform(0.1, 0.9))
        yield SeenEvidence(k.HOST_CPU, at_s + rng.uniform(10, 900), "n0", value=0.0)


def _times(rng: random.Random, days: float, per_day: float) -> Iterator[float]:
    at_s = rng.expovariate(per_day / DAY_S)
    while at_s < days * DAY_S:
        yield at_s
        at_s += rng.expovariate(per_day / DAY_S)


def false_alarms(days: float, seed: int) -> list[str]:
    """Of one node with DEVICES GPUs and as many ports, for so many days; each with its reason."""
    rng = random.Random(seed)
    judge = HealthJudge(default_policy())
    found = []
    order = count()
    queue: list[tuple[float, int, SeenEvidence | None]] = [(s.time_s, next(order), s) for s in node_noise(rng, days)]
    for number in range(DEVICES):
        noise = {f"GPU-{number}": device_noise(rng, days), f"port-{number}": port_noise(rng, days)}
        for device, all_of_it in noise.items():
            for at_s, kind, value, code in all_of_it:
                queue.append((at_s, next(order), SeenEvidence(kind, at_s, "n0", device, "", code, value)))
    heapq.heapify(queue)
    while queue:
        now_s, _, seen = heapq.heappop(queue)
        verdicts = judge.tick(now_s)
        if seen is not None:
            verdicts += [v for v in (judge.see(seen, now_s),) if v is not None]
        found += [f"{v.action}: {v.reason}" for v in verdicts if v.action in ACTIONS]
        if judge.due_s is not None:
            heapq.heappush(queue, (max(judge.due_s, now_s), next(order), None))
    return found + _evaluations(rng, days)


def _evaluations(rng: random.Random, days: float) -> list[str]:
    """One rank evaluates or saves, at work as the kernel sees it, and the others wait in a collective."""
    found = []
    policy = Policy()
    for _ in _times(rng, days, 4):
        took_s = rng.uniform(1, 540)
        for silent_s in (took_s / 4, took_s / 2, took_s):
            phase = RankPhase.AFTER.value
            vitals = [Vital(0, 9, 9, phase, False, "S", silent_s, min(silent_s, rng.uniform(0, 2)), 0.5)]
            vitals += [
                Vital(r, 9, 9, RankPhase.BODY.value, True, "S", silent_s, silent_s, 0.5) for r in range(1, DEVICES)
            ]
            if (culprit := find_culprit(vitals, 0.5, policy)) is not None:
                found.append(culprit.reason)
    return found


def main() -> int:
    device_days = float(sys.argv[1])
    seed = int(sys.argv[2])
    found = false_alarms(device_days / DEVICES, seed)
    per_1000 = len(found) * 1000 / device_days
    print(
        json.dumps({"device_days": device_days, "false_alarms": found[:20], "count": len(found), "per_1000": per_1000})
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
