"""What does this evidence mean? Pure: the history, the table and the time in, a verdict with its reason out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torchrelay.protocol.health.history import History, SeenEvidence
from torchrelay.protocol.health.kinds import (
    ACTIONS,
    EXPLAINING,
    IGNORE,
    LEVELS,
    NOBODY,
    NODE_CONDITION,
    RECOVERY_ACTION,
    WATCH,
    XID,
)
from torchrelay.protocol.health.policy import HealthPolicy, Rule

UNKNOWN = "unknown"
"""Rule of a verdict about evidence that no row speaks of."""
_REGISTERS = re.compile(r"\((0x[0-9a-fA-F]+(?:,\s*0x[0-9a-fA-F]+)*)\)")


@dataclass(frozen=True)
class DeviceVerdict:
    """`since_s`: when the evidence for it began; the same row with the same `since_s` is the same verdict. `due_s`: when
    a level that holds on would reach a verdict that it has not reached yet, or None.
    """

    action: str
    rule: str
    reason: str
    seen: SeenEvidence
    since_s: float
    quarantine: str = NOBODY
    observe: bool = False
    cooldown_s: float = 0.0
    due_s: float | None = None


def classify(history: History, newest: SeenEvidence, policy: HealthPolicy, now_s: float) -> DeviceVerdict:
    """Return the most severe verdict that follows now from `newest`, which is in the history already."""
    fitting = [r for r in policy.rules_of(newest.kind) if _is_about(r, newest)]
    if newest.kind == XID and any(r.bits for r in fitting):
        # The line says which register: the row for a line without registers does not apply.
        fitting = [r for r in fitting if r.bits]
    due = [d for r in fitting if (d := _due_s(history, newest, r)) is not None and d > now_s]
    found = [v for r in fitting if (v := _judge(history, newest, r, policy, now_s)) is not None]
    if found:
        worst = max(found, key=lambda v: ACTIONS.index(v.action))
        return _with_due(worst, min(due, default=None))
    known = bool(policy.rules_of(newest.kind)) and (bool(fitting) or newest.kind != XID)
    if known or newest.kind in EXPLAINING:
        return DeviceVerdict(
            IGNORE, "", f"{newest}: not enough to act on", newest, newest.time_s, due_s=min(due, default=None)
        )
    return DeviceVerdict(WATCH, UNKNOWN, f"{newest}: the policy has no row for it", newest, newest.time_s)


def _with_due(v: DeviceVerdict, due_s: float | None) -> DeviceVerdict:
    return DeviceVerdict(v.action, v.rule, v.reason, v.seen, v.since_s, v.quarantine, v.observe, v.cooldown_s, due_s)


def _is_about(rule: Rule, seen: SeenEvidence) -> bool:
    if rule.codes and seen.code not in rule.codes:
        return False
    if rule.match and not re.search(rule.match, seen.detail):
        return False
    return not rule.bits or _has_bit(rule, seen.detail)


def _has_bit(rule: Rule, detail: str) -> bool:
    registers = nvlink_registers(detail)
    return any(
        number <= len(registers) and any(registers[number - 1] >> bit & 1 for bit in bits)
        for number, bits in rule.bits.items()
    )


def nvlink_registers(detail: str) -> list[int]:
    """Return the registers that the line of an XID 74 lists in brackets; empty if it lists none."""
    found = _REGISTERS.search(detail)
    return [int(part, 16) for part in found[1].split(",")] if found else []


def _judge(
    history: History, newest: SeenEvidence, rule: Rule, policy: HealthPolicy, now_s: float
) -> DeviceVerdict | None:
    if newest.kind in LEVELS:
        since_s = _level_since_s(history.of(newest.kind, newest.node, newest.subject), rule)
        if since_s is None or now_s - since_s < rule.for_s:
            return None
        value = "" if newest.kind == NODE_CONDITION else f" is {newest.value:g}"
        return _verdict(rule, newest, since_s, policy, f"{newest}{value}{_for(now_s - since_s)}", history)
    if rule.devices > 1:
        subjects = _subjects_with(history, rule, newest.time_s)
        if len(subjects) < rule.devices:
            return None
        return _verdict(rule, newest, newest.time_s, policy, f"{newest}, and {_others(subjects, newest)}", history)
    occurrences = list(_occurrences(history.of(newest.kind, newest.node, newest.subject), rule, newest))
    if rule.sum_over is not None:
        total = sum(s.value for s in occurrences)
        if total <= rule.sum_over:
            return None
        return _verdict(rule, newest, newest.time_s, policy, f"{newest}: {total:g} in {rule.within_s:g} s", history)
    if len(occurrences) < rule.times:
        return None
    times = f", {len(occurrences)} times within {_span(rule.within_s)}" if rule.times > 1 else ""
    return _verdict(rule, newest, newest.time_s, policy, f"{newest}{times}", history)


def _verdict(
    rule: Rule, newest: SeenEvidence, since_s: float, policy: HealthPolicy, what: str, history: History
) -> DeviceVerdict:
    action = rule.verdict
    quarantine = rule.quarantine
    reason = f"{what}: {rule.why}"
    if newest.detail and newest.kind != NODE_CONDITION:
        reason += f" [{newest.detail}]"
    if rule.secondary and (cause := _cause(history, newest, policy)) is not None:
        reason = (
            f"{what} follows from {cause} {newest.time_s - cause.time_s:.1f} s before, and has no verdict of its own"
        )
        action = IGNORE
        quarantine = NOBODY
    elif rule.contested and ACTIONS.index(action) > ACTIONS.index(WATCH) and _needs_nothing(history, newest):
        reason += f"; sources disagree ({rule.contested}), and the driver says that nothing is to be done"
        action = WATCH
        quarantine = NOBODY
    return DeviceVerdict(
        action, rule.name, reason, newest, since_s, quarantine, policy.observe or rule.observe, rule.cooldown_s
    )


def _cause(history: History, newest: SeenEvidence, policy: HealthPolicy) -> SeenEvidence | None:
    """Return the first error of the same burst on this node that is not itself a consequence; None if there is none."""
    causes = [
        seen
        for kept in history.subjects(XID)
        for seen in kept
        if seen.node == newest.node
        and 0 <= newest.time_s - seen.time_s <= policy.limits.burst_s
        and seen is not newest
        and _is_primary(seen, policy)
    ]
    return min(causes, key=lambda s: s.time_s, default=None)


def _is_primary(seen: SeenEvidence, policy: HealthPolicy) -> bool:
    rules = [r for r in policy.rules_of(seen.kind) if _is_about(r, seen)]
    return any(r.verdict != IGNORE and not r.secondary for r in rules)


def _needs_nothing(history: History, newest: SeenEvidence) -> bool:
    actions = history.of(RECOVERY_ACTION, newest.node, newest.subject)
    return bool(actions) and actions[-1].code == 0


def _level_since_s(kept: Sequence[SeenEvidence], rule: Rule) -> float | None:
    """Return when the level was reached for the episode that still lasts; None if none lasts."""
    since_s = None
    for seen in kept:
        if _reached(rule, seen.value):
            since_s = seen.time_s if since_s is None else since_s
        elif _over(rule, seen.value):
            since_s = None
    return since_s


def _reached(rule: Rule, value: float) -> bool:
    return value >= rule.at_least if rule.at_least is not None else value <= (rule.at_most or 0.0)


def _over(rule: Rule, value: float) -> bool:
    if rule.clear is None:
        return not _reached(rule, value)
    return value < rule.clear if rule.at_least is not None else value > rule.clear


def _due_s(history: History, newest: SeenEvidence, rule: Rule) -> float | None:
    if newest.kind not in LEVELS:
        return None
    since_s = _level_since_s(history.of(newest.kind, newest.node, newest.subject), rule)
    return None if since_s is None else since_s + rule.for_s


def _occurrences(kept: Sequence[SeenEvidence], rule: Rule, newest: SeenEvidence) -> Iterable[SeenEvidence]:
    key = _same(rule, newest)
    for seen in reversed(kept):
        if rule.within_s and newest.time_s - seen.time_s > rule.within_s:
            return
        if _is_about(rule, seen) and _same(rule, seen) == key:
            yield seen


def _same(rule: Rule, seen: SeenEvidence) -> str:
    if not rule.same:
        return ""
    found = re.search(rule.same, seen.detail)
    return found[1] if found else ""


def _subjects_with(history: History, rule: Rule, now_s: float) -> list[SeenEvidence]:
    """Return the newest evidence that fits the rule, of each device of the whole job."""
    found = []
    for kept in history.subjects(rule.signal):
        fresh = [s for s in kept if now_s - s.time_s <= rule.within_s and _is_about(rule, s)]
        if fresh:
            found.append(fresh[-1])
    return found


def _others(subjects: list[SeenEvidence], newest: SeenEvidence) -> str:
    return ", ".join(str(s) for s in subjects if (s.node, s.subject) != (newest.node, newest.subject))


def _for(seconds: float) -> str:
    return f" for {seconds:.0f} s" if seconds >= 1 else ""


def _span(seconds: float) -> str:
    return (
        f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds / 60:g} min" if seconds >= 60 else f"{seconds:g} s"
    )
