"""Keeps the evidence of one job, and says each verdict once. Input and output free."""

from __future__ import annotations

import dataclasses
from collections import deque

from torchrelay.protocol.health.classify import DeviceVerdict, classify
from torchrelay.protocol.health.history import History, SeenEvidence
from torchrelay.protocol.health.kinds import COUNTERS, IGNORE, LEVELS, MIGRATE, REPLACE, WATCH
from torchrelay.protocol.health.policy import HealthPolicy

QUIET_KINDS = (*COUNTERS, *LEVELS)
"""For these kinds an `ignore` is the ordinary case, and is not told."""


class HealthJudge:
    """The evidence of one job. Times are of one monotonic clock."""

    def __init__(self, policy: HealthPolicy) -> None:
        self.policy = policy
        self.history = History()
        self._told_since: dict[tuple[str, str, str], float] = {}
        self._told_at: dict[tuple[str, str, str], float] = {}
        self._cooling: dict[str, float] = {}
        self._migrations: deque[float] = deque()
        self.due_s: float | None = None
        """When a level that holds leads to a verdict by time alone, if one does."""

    def see(self, seen: SeenEvidence, now_s: float) -> DeviceVerdict | None:
        """Return the verdict about new evidence, if there is one that has not been told."""
        self.history.add(seen)
        return self._news(classify(self.history, seen, self.policy, now_s), now_s)

    def tick(self, now_s: float) -> list[DeviceVerdict]:
        """Return the verdicts that are due because a level has held for long enough."""
        if not self.is_due(now_s):
            return []
        self.due_s = None
        verdicts = [classify(self.history, newest, self.policy, now_s) for newest in self.history.levels()]
        return [news for v in verdicts if (news := self._news(v, now_s)) is not None]

    def is_due(self, now_s: float) -> bool:
        return self.due_s is not None and now_s >= self.due_s

    @property
    def is_waiting(self) -> bool:
        """Whether a level holds that leads to a verdict by time alone."""
        return self.due_s is not None

    def _news(self, v: DeviceVerdict, now_s: float) -> DeviceVerdict | None:
        if v.due_s is not None:
            self.due_s = v.due_s if self.due_s is None else min(self.due_s, v.due_s)
        if v.action == IGNORE and v.seen.kind in QUIET_KINDS:
            return None
        key = (v.rule, v.seen.node, v.seen.subject)
        if self._told_since.get(key) == v.since_s:
            return None
        last_s = self._told_at.get(key)
        if v.action in (IGNORE, WATCH) and last_s is not None and now_s - last_s < self.policy.limits.repeat_watch_s:
            return None
        if v.cooldown_s and now_s - self._cooling.get(v.rule, -v.cooldown_s) < v.cooldown_s:
            return None
        self._told_since[key] = v.since_s
        self._told_at[key] = now_s
        if v.cooldown_s:
            self._cooling[v.rule] = now_s
        return v

    def storm(self, now_s: float) -> str:
        """Take one automatic migration from those that the job may have.

        Return the reason if there is none left, else an empty text.
        """
        limits = self.policy.limits
        while self._migrations and now_s - self._migrations[0] > limits.storm_s:
            self._migrations.popleft()
        if len(self._migrations) >= limits.storm_migrations:
            return (
                f"{len(self._migrations)} automatic migrations within {limits.storm_s / 60:g} min are as many as this job "
                "may have: a person has to look, and move it with `torchrelay migrate`"
            )
        self._migrations.append(now_s)
        return ""

    def blamed(self, node: str, devices: list[str], now_s: float) -> str:
        """Return why a failure now is not the program's: evidence against one of its devices a moment ago; or empty."""
        newest = (kept[-1] for kind in self._kinds_that_blame() for kept in self.history.subjects(kind) if kept)
        for seen in newest:
            if seen.node == node and seen.subject in devices and now_s - seen.time_s <= self.policy.limits.blame_s:
                verdict = classify(self.history, seen, dataclasses.replace(self.policy, observe=False), now_s)
                if verdict.action in (MIGRATE, REPLACE):
                    return verdict.reason
        return ""

    def _kinds_that_blame(self) -> list[str]:
        return sorted({r.signal for r in self.policy.rules if r.verdict in (MIGRATE, REPLACE)})
