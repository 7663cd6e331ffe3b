"""The table that verdicts are read from, and the check of all of it. Pure; `policy_file` reads it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.health.kinds import ACTIONS, COUNTERS, EVENTS, KINDS, LEVELS, NOBODY, QUARANTINES, XID


@dataclass(frozen=True)
class Rule:
    """One row. Without a condition each occurrence counts.

    `codes`, `match` (a regular expression on the detail), `bits` (register of XID 74, from 1, -> bits, any of them): which
    occurrences it is about. `times`/`sum_over` within `within_s`; `devices`: on so many different ones; `same`: a
    regular expression whose group must agree. `at_least`, `at_most`: a level, held for `for_s`, over when it has passed
    `clear`. `secondary`: never blames a device when there is a cause in the same burst. `contested`: sources disagree;
    then the driver's own recovery action, where it says that nothing is to be done, makes a `watch` of it. `cooldown_s`:
    so long after a verdict of this row in the same job there is no other.
    """

    name: str
    signal: str
    verdict: str
    why: str
    source: str
    codes: tuple[int, ...] = ()
    match: str = ""
    bits: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    times: int = 1
    within_s: float = 0.0
    devices: int = 1
    same: str = ""
    sum_over: float | None = None
    at_least: float | None = None
    at_most: float | None = None
    for_s: float = 0.0
    clear: float | None = None
    secondary: bool = False
    contested: str = ""
    quarantine: str = NOBODY
    cooldown_s: float = 0.0
    observe: bool = False


@dataclass(frozen=True)
class Limits:
    """Limits of the policy. `burst_s`: errors of one node so close together have one cause.

    `blame_s`: so long after evidence against its device a failure of a process is the device's.
    `storm_migrations`: automatic ones that a job may have in `storm_s`.
    """

    burst_s: float = 5.0
    blame_s: float = 30.0
    storm_migrations: int = 6
    storm_s: float = 3600.0
    repeat_watch_s: float = 60.0


@dataclass(frozen=True)
class HealthPolicy:
    """The whole policy. `observe`: say what would be done, and do nothing."""

    rules: tuple[Rule, ...] = ()
    limits: Limits = field(default_factory=Limits)
    observe: bool = False

    def rules_of(self, kind: str) -> tuple[Rule, ...]:
        return self._by_kind.get(kind, ())

    def __post_init__(self) -> None:
        by_kind: dict[str, tuple[Rule, ...]] = {}
        for rule in self.rules:
            by_kind[rule.signal] = (*by_kind.get(rule.signal, ()), rule)
        object.__setattr__(self, "_by_kind", by_kind)

    _by_kind: dict[str, tuple[Rule, ...]] = field(init=False, repr=False, compare=False, default_factory=dict)


_TABLES = ("limits", "xid", "rules")
_TOP = ("observe", *_TABLES)
_ROW = {f.name: f for f in dataclasses.fields(Rule) if f.name not in ("name", "signal")}
_NUMBERS = ("within_s", "sum_over", "at_least", "at_most", "for_s", "clear", "cooldown_s")


def overlaid(where: str, changes: Mapping[Any, Any], base: Mapping[str, Any]) -> dict[Any, Any]:
    """Return `base` with `changes`: single keys of a row are replaced, new rows are added whole, and null removes a row.

    Raises UserError if a row is to be removed that `base` does not have.
    """
    values = {**base, **changes}
    for key in _TABLES:
        table = dict(base.get(key) or {})
        changed = changes.get(key) or {}
        if not isinstance(changed, dict):
            continue  # named when the whole is read
        for name, row in changed.items():
            if row is None and name not in table:
                raise UserError(f"{where}: {key}: {name} is to be removed, and the default policy has no such row")
            if row is None:
                del table[name]
            else:
                table[name] = {**table[name], **row} if isinstance(row, dict) and name in table else row
        values[key] = table
    return values


def parse_policy(where: str, values: Any) -> HealthPolicy:
    """Make a policy of `values`, as read from YAML. Raises UserError, which names the row and says what to do."""
    if not isinstance(values, dict):
        raise UserError(f"{where}: is no table; give keys {', '.join(_TOP)}")
    if unknown := [str(k) for k in values if k not in _TOP]:
        raise UserError(f"{where}: unknown key {unknown[0]!r}; known are {', '.join(_TOP)}")
    observe = values.get("observe", False)
    if not isinstance(observe, bool):
        raise UserError(f"{where}: observe is {observe!r}; give true or false")
    limits = _limits(where, values.get("limits") or {})
    rules = [_xid(where, code, row) for code, row in _table(where, "xid", values).items()]
    taken = {r.name for r in rules}
    for name, row in _table(where, "rules", values).items():
        if name in taken:
            raise UserError(f"{where}: rules: {name} is the name of a row of the table xid; choose another name")
        rules.append(_rule(f"{where}: rules: {name}", str(name), row))
    return HealthPolicy(tuple(rules), limits, observe)


def _table(where: str, key: str, values: dict[str, Any]) -> dict[Any, Any]:
    table = values.get(key) or {}
    if not isinstance(table, dict):
        raise UserError(f"{where}: {key} is no table; give one row for each name")
    return table


def _limits(where: str, values: Any) -> Limits:
    known: dict[str, Any] = {f.name: f.default for f in dataclasses.fields(Limits)}
    if not isinstance(values, dict):
        raise UserError(f"{where}: limits is no table; it may have {', '.join(known)}")
    for key, value in values.items():
        if key not in known:
            raise UserError(f"{where}: limits: unknown key {key!r}; known are {', '.join(known)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
            raise UserError(f"{where}: limits: {key} is {value!r}; give a number from 0")
    return Limits(**{k: type(known[k])(v) for k, v in values.items()})


def _xid(where: str, code: Any, row: Any) -> Rule:
    if isinstance(code, bool) or not isinstance(code, int) or code < 1:
        raise UserError(f"{where}: xid: {code!r} is no XID; give its number")
    where = f"{where}: xid: {code}"
    if isinstance(row, dict) and ("signal" in row or "codes" in row):
        raise UserError(f"{where}: signal and codes follow from the table; leave them out, or put the row under rules")
    values = {**row, "signal": XID, "codes": [code]} if isinstance(row, dict) else row
    return _rule(where, f"xid-{code}", values)


def _rule(where: str, name: str, row: Any) -> Rule:
    if not isinstance(row, dict):
        raise UserError(f"{where}: is no row; give signal, verdict, why and source")
    if unknown := [str(k) for k in row if k not in _ROW and k != "signal"]:
        raise UserError(f"{where}: unknown key {unknown[0]!r}; known are signal, {', '.join(_ROW)}")
    if missing := [k for k in ("signal", "verdict", "why", "source") if not row.get(k)]:
        raise UserError(f"{where}: {missing[0]} is missing; every row says what it does, why, and after which source")
    _one_of(where, "signal", row["signal"], KINDS)
    _one_of(where, "verdict", row["verdict"], ACTIONS)
    _one_of(where, "quarantine", row.get("quarantine", NOBODY), QUARANTINES)
    values = {key: _value(where, key, value) for key, value in row.items()}
    rule = Rule(name=name, **values)
    _check(where, rule)
    return rule


def _one_of(where: str, key: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise UserError(f"{where}: {key} is {value!r}; give one of {', '.join(known)}")


def _value(where: str, key: str, value: Any) -> Any:
    if key in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise UserError(f"{where}: {key} is {value!r}; give a number")
        return float(value)
    if key in ("times", "devices"):
        if type(value) is not int or value < 1:
            raise UserError(f"{where}: {key} is {value!r}; give a whole number from 1")
        return value
    if key in ("secondary", "observe"):
        if not isinstance(value, bool):
            raise UserError(f"{where}: {key} is {value!r}; give true or false")
        return value
    if key == "codes":
        return _whole_numbers(where, key, value)
    if key == "bits":
        return _bits(where, value)
    if not isinstance(value, str):
        raise UserError(f"{where}: {key} is {value!r}; give text")
    if key in ("match", "same"):
        try:
            re.compile(value)
        except re.error as e:
            raise UserError(f"{where}: {key} is no regular expression: {e}") from e
    return value


def _bits(where: str, value: Any) -> dict[int, tuple[int, ...]]:
    if not isinstance(value, dict) or not all(type(k) is int and 1 <= k <= 7 for k in value):
        raise UserError(f"{where}: bits is {value!r}; give a list of bits for each register from 1 to 7")
    return {k: _whole_numbers(where, f"bits: {k}", v) for k, v in value.items()}


def _whole_numbers(where: str, key: str, value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(v) is int for v in value):
        raise UserError(f"{where}: {key} is {value!r}; give a list of whole numbers, as in [13, 31]")
    return tuple(value)


def _check(where: str, r: Rule) -> None:
    is_level = r.at_least is not None or r.at_most is not None
    if r.signal in LEVELS and not is_level:
        raise UserError(f"{where}: {r.signal} is a level; say from where on with at_least or at_most")
    if is_level and r.signal not in LEVELS:
        raise UserError(f"{where}: {r.signal} is no level; count it with times or sum_over, and within_s")
    if r.at_least is not None and r.at_most is not None:
        raise UserError(f"{where}: at_least and at_most exclude each other; make two rows of it")
    if r.clear is not None and (
        (r.at_least is not None and r.clear > r.at_least) or (r.at_most is not None and r.clear < r.at_most)
    ):
        raise UserError(f"{where}: clear is on the wrong side: a level would be over before it has begun")
    if r.sum_over is not None and r.signal not in COUNTERS:
        raise UserError(f"{where}: {r.signal} is no counter; sum_over is for {', '.join(COUNTERS)}")
    if (r.times > 1 or r.devices > 1 or r.sum_over is not None) and r.within_s <= 0:
        raise UserError(f"{where}: within_s is missing; say in how much time")
    if r.signal not in (*EVENTS, *COUNTERS) and r.times > 1:
        raise UserError(f"{where}: times is for events and counters")
