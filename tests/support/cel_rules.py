"""The rules of a custom resource (`x-kubernetes-validations`), held as an API server holds them, by CEL's own implementation.

An API server does not take a definition of which one rule does not compile, so types are checked here, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

cel = pytest.importorskip("cel_expr_python.cel", reason="CEL has no wheel for this Python or processor")

RULES = "x-kubernetes-validations"
_FIELD = re.compile(r"\b(?:self|oldSelf)\.(\w+)(?!\w*\()")


class WrongRuleError(Exception):
    """A rule that an API server would not take."""


class HeldRule(NamedTuple):
    """`schema`: of what `self` is. `path`: of that, from the resource's own fields on."""

    path: tuple[str, ...]
    schema: dict[str, Any]
    text: str
    message: str

    @property
    def compares(self) -> bool:
        """Whether it looks at what was there before: a new resource is not held to it."""
        return "oldSelf" in self.text


def rules_of(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[HeldRule]:
    for rule in schema.get(RULES, ()):
        yield HeldRule(path, schema, rule["rule"], rule["message"])
    for name, part in schema.get("properties", {}).items():
        yield from rules_of(part, (*path, name))


def compiled(rule: HeldRule) -> Any:
    """Raises WrongRuleError."""
    fields = rule.schema.get("properties", {})
    unknown = [name for name in _FIELD.findall(rule.text) if name not in fields]
    if unknown:
        raise WrongRuleError(f"{rule.text}: there is no {', '.join(unknown)}")
    kind = _type_of(rule.schema)
    try:
        program = cel.NewEnv(variables={"self": kind, "oldSelf": kind}).compile(rule.text)
    except Exception as e:
        raise WrongRuleError(f"{rule.text}: {e}") from e
    if program.return_type() != cel.Type.BOOL:
        raise WrongRuleError(f"{rule.text}: is a {program.return_type().name()}")
    return program


def _type_of(schema: dict[str, Any]) -> Any:
    match schema["type"]:
        case "object":
            return cel.Type.Map(cel.Type.STRING, cel.Type.DYN)
        case "array":
            return cel.Type.List(_type_of(schema["items"]))
        case kind:
            return {"string": cel.Type.STRING, "integer": cel.Type.INT, "boolean": cel.Type.BOOL}[kind]


def refusals(schema: dict[str, Any], made: dict[str, Any], before: dict[str, Any] | None = None) -> list[str]:
    """Return the messages of the rules that a resource breaks; `before`: what it was, if it is changed."""
    found = []
    for rule in rules_of(schema):
        now, old = _at(made, rule.path), _at(before or {}, rule.path)
        if now is None or (rule.compares and old is None):
            continue
        if not compiled(rule).eval(data={"self": now, "oldSelf": old}).plain_value():
            found.append(rule.message)
    return found


def _at(resource: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        resource = resource.get(name) if isinstance(resource, dict) else None
    return resource
