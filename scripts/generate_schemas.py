"""Writes the JSON Schemas of docs/schemas from the dataclasses that are printed; `--check` only says whether they are so."""

from __future__ import annotations

import dataclasses
import enum
import json
import sys
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from generated_part import ROOT, write_or_check

from torchrelay.cli.commands.check import CheckJson
from torchrelay.cli.commands.doctor import DoctorJson
from torchrelay.cli.display import answers
from torchrelay.cli.display.run_json import RunJson
from torchrelay.cli.display.told_json import QuarantineJson, SparesJson, StatusJson
from torchrelay.cli.drill.result import DrillJson
from torchrelay.cli.history.cost import CostReport
from torchrelay.cli.history.listing import HistoryJson
from torchrelay.dashboard.story import ToldMigration
from torchrelay.protocol import events

FOLDER = ROOT / "docs" / "schemas"
DRAFT = "https://json-schema.org/draft/2020-12/schema"
PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
RUN_ID: dict[str, Any] = {"run_id": {"type": "string"}}
WHOLE: dict[str, tuple[str, type]] = {
    "run": ("torchrelay run --json", RunJson),
    "check": ("torchrelay check --json", CheckJson),
    "doctor": ("torchrelay doctor --json", DoctorJson),
    "drill": ("torchrelay drill --json", DrillJson),
    "history": ("torchrelay history --json", HistoryJson),
    "migrate": ("torchrelay migrate --json", answers.MigrateJson),
    "checkpoint": ("torchrelay checkpoint --json", answers.CheckpointJson),
    "drain": ("drain --json, of torchrelay and kubectl torchrelay", answers.DrainJson),
    "stop": ("stop --json, of torchrelay and kubectl torchrelay", answers.StopJson),
    "quarantine": ("torchrelay quarantine list --json", QuarantineJson),
    "quarantine-add": ("torchrelay quarantine add --json", answers.QuarantineAddJson),
    "quarantine-clear": ("torchrelay quarantine clear --json", answers.QuarantineClearJson),
    "spares-add": ("torchrelay spares add --json", answers.SparesAddJson),
}
"""By file name, the objects whose every field is one of a dataclass."""


def schema_of(kind: Any) -> dict[str, Any]:
    """Of a value as `dataclasses.asdict` and JSON write it. Raises TypeError for a type that has no form there."""
    origin, given = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return {}
    if kind in PLAIN:
        return {"type": PLAIN[kind]}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [schema_of(each) for each in given]}
    if origin in (tuple, list):
        return {"type": "array", "items": schema_of(given[0])}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema_of(given[1])}
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": [member.value for member in kind]}
    if dataclasses.is_dataclass(kind):
        return _of_fields(kind)
    raise TypeError(f"{kind} has no form in JSON")


def _of_fields(kind: Any, more: Mapping[str, Any] = types.MappingProxyType({})) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    properties = {**more, **{f.name: schema_of(hints[f.name]) for f in dataclasses.fields(kind)}}
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _event(kind: type, name: str) -> dict[str, Any]:
    """One line of `--events`. A later version may say more of an event than this one knows."""
    made = _of_fields(kind, {"time_s": {"type": "number"}, "name": {"const": name}})
    needed = [f.name for f in dataclasses.fields(kind) if _is_needed(f)]
    return {**made, "required": ["time_s", "name", *needed], "additionalProperties": True}


def _is_needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def schemas() -> dict[str, dict[str, Any]]:
    """By file name."""
    told = {
        "status": {"title": "torchrelay status --json, one line a job", **schema_of(StatusJson)},
        "spares": {"title": "torchrelay spares --json", **_of_fields(SparesJson, RUN_ID)},
        "explain": {"title": "torchrelay explain --json", **_of_fields(ToldMigration, RUN_ID)},
        "report": {
            "title": "report --json, of torchrelay and kubectl torchrelay",
            **_of_fields(CostReport, {"saved_device_h": {"type": "number"}}),
        },
        **{name: {"title": title, **schema_of(kind)} for name, (title, kind) in WHOLE.items()},
        "events": {
            "title": "one line of torchrelay run --events, or torchrelay events --json",
            "oneOf": [_event(kind, name) for kind, name in events.NAMES.items()],
        },
    }
    return {f"{name}.schema.json": {"$schema": DRAFT, **schema} for name, schema in told.items()}


def texts() -> dict[Path, str]:
    return {FOLDER / name: json.dumps(schema, indent=1) + "\n" for name, schema in schemas().items()}


if __name__ == "__main__":
    sys.exit(write_or_check(texts(), "generate_schemas.py", __doc__))
