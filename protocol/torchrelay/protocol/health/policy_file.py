"""Reads a policy from YAML. Not for the shim: it needs PyYAML."""

from __future__ import annotations

import dataclasses
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.health.policy import HealthPolicy, overlaid, parse_policy

DEFAULT = "policy.yaml"
EXTENDS = "extends"
BASE = "default"
"""At the top of a file that has only what differs from the default policy."""


_Safe: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one in C, where PyYAML has it: the default policy takes a tenth of a second in Python, at each start."""


class _Loader(_Safe):  # type: ignore[misc]  # a base that is found when it runs
    """Refuses a key that is given twice, where YAML would silently take the last."""


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    values: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        line = key_node.start_mark.line + 1
        if isinstance(key, (list, dict)):
            raise UserError(f"line {line}: a list or a table cannot be the name of a row; give a name or a number")
        if key in values:
            raise UserError(f"line {line}: {key} is given twice; remove one of the two")
        values[key] = loader.construct_object(value_node, deep=True)
    return values


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def default_policy() -> HealthPolicy:
    return parse_policy(DEFAULT, _default_values())


def _default_values() -> Any:
    return _load(DEFAULT, resources.files("torchrelay.protocol.health").joinpath(DEFAULT).read_text("utf-8"))


def read_policy(path: str, observe: bool = False) -> HealthPolicy:
    """Read the policy in `path`; an empty path means the default one. Raises UserError if it cannot be read or used."""
    if not path:
        policy = default_policy()
    else:
        try:
            text = Path(path).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as e:
            raise UserError(f"the health policy {path} cannot be read: {e}") from e
        values = _load(path, text)
        if isinstance(values, dict) and EXTENDS in values:
            values = _extended(path, values)
        policy = parse_policy(path, values)
    return dataclasses.replace(policy, observe=True) if observe else policy


def _extended(path: str, values: dict[Any, Any]) -> dict[Any, Any]:
    changes = dict(values)
    if (base := changes.pop(EXTENDS)) != BASE:
        raise UserError(f"{path}: {EXTENDS} is {base!r}; give {BASE}, or leave it out and give a whole policy")
    return overlaid(path, changes, _default_values())


def _load(where: str, text: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except UserError as e:
        raise UserError(f"{where}: {e}") from e
    except yaml.YAMLError as e:
        raise UserError(f"{where}: is no YAML: {e}") from e
