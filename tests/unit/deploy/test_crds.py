"""The rules that API servers have for schemas of custom resources, and what the schemas let through."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from support import kube_schema
from support.custom_resources import EXAMPLES, SHORT_NAMES, WRONG

from torchrelay.controller.kube.status.quarantine_conditions import QuarantineCondition
from torchrelay.protocol.kube import kube_names as kube

FOLDER = Path(__file__).parents[3] / "deploy" / "crds"
CRDS: dict[str, dict[str, Any]] = {
    d["spec"]["names"]["kind"]: d for d in (yaml.safe_load(p.read_text()) for p in sorted(FOLDER.glob("*.yaml")))
}
KINDS = sorted(CRDS)
_FORBIDDEN = {
    "$ref",
    "definitions",
    "deprecated",
    "discriminator",
    "id",
    "patternProperties",
    "readOnly",
    "writeOnly",
    "xml",
}
_TYPES = {"object", "array", "string", "integer", "number", "boolean"}


def version_of(kind: str) -> dict[str, Any]:
    (version,) = CRDS[kind]["spec"]["versions"]
    assert isinstance(version, dict)
    return version


def schema_of(kind: str) -> dict[str, Any]:
    schema: dict[str, Any] = version_of(kind)["schema"]["openAPIV3Schema"]
    return schema


_CONDITION = re.compile(r'\[\?\(@\.type=="(\w+)"\)\]')
"""One of a list of conditions, by its type."""


def walk(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from walk(below, f"{path}.{name}")
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[*]")


def problems(schema: dict[str, Any]) -> list[str]:  # noqa: C901 - one case for each keyword of a schema
    """What an API server would refuse: https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/ "structural schema"."""
    found = []
    for path, part in walk(schema):
        if part.get("type") not in _TYPES:
            found.append(f"{path}: no type")
        if forbidden := _FORBIDDEN & set(part):
            found.append(f"{path}: {forbidden}")
        if part.get("uniqueItems"):
            found.append(f"{path}: uniqueItems")
        if "additionalProperties" in part and "properties" in part:
            found.append(f"{path}: both properties and additionalProperties")
        if part.get("type") == "array" and "items" not in part:
            found.append(f"{path}: a list of what?")
        for kind in ("oneOf", "anyOf", "allOf"):
            for branch in part.get(kind, []):
                if {"type", "description", "default", "additionalProperties"} & set(branch):
                    found.append(f"{path}: {kind} says more than a check may")
        if part.get("x-kubernetes-list-type") == "map":
            keys, item = part["x-kubernetes-list-map-keys"], part["items"]
            if item["type"] != "object" or not set(keys) <= set(item.get("required", [])):
                found.append(f"{path}: the keys of a list map must be required")
        if set(part.get("required", [])) - set(part.get("properties", {})) and "properties" in part:
            found.append(f"{path}: requires what it does not know")
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_the_schema_is_structural(kind: str) -> None:
    assert problems(schema_of(kind)) == []


def test_the_check_finds_what_api_servers_refuse() -> None:
    for spoil in (
        lambda s: s["properties"]["spec"].pop("type"),
        lambda s: s["properties"]["spec"].update({"$ref": "#/x"}),
        lambda s: s["properties"]["spec"].update({"uniqueItems": True}),
        lambda s: s["properties"]["spec"]["oneOf"][0].update({"type": "object"}),
        lambda s: s["properties"]["status"]["properties"]["conditions"]["items"].update({"required": []}),
        lambda s: s["properties"]["spec"]["required"].append("unknown"),
    ):
        schema = copy.deepcopy(schema_of("Migration"))
        spoil(schema)
        assert problems(schema)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("release", ["1.25", "1.29", "1.36"])
def test_the_definition_itself_fits_the_schema_of_kubernetes(kind: str, release: str) -> None:
    kube_schema.check(CRDS[kind], release)


@pytest.mark.parametrize("kind", KINDS)
def test_names_agree_with_the_protocol(kind: str) -> None:
    spec = CRDS[kind]["spec"]
    assert (spec["group"], version_of(kind)["name"]) == (kube.GROUP, kube.VERSION)
    assert CRDS[kind]["metadata"]["name"] == f"{spec['names']['plural']}.{kube.GROUP}"
    assert spec["names"]["shortNames"] == [SHORT_NAMES[kind]]
    assert spec["scope"] == ("Cluster" if kind == "Quarantine" else "Namespaced")


@pytest.mark.parametrize("kind", KINDS)
def test_status_is_a_resource_of_its_own_and_has_conditions(kind: str) -> None:
    assert "status" in version_of(kind)["subresources"]
    conditions = schema_of(kind)["properties"]["status"]["properties"]["conditions"]
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_column_and_scale_path_leads_to_a_field_of_its_type(kind: str) -> None:
    version = version_of(kind)
    known = dict(walk(schema_of(kind)))
    columns = version["additionalPrinterColumns"]
    for column in columns:
        if of_condition := _CONDITION.search(column["jsonPath"]):
            assert of_condition[1] in {condition.value for condition in QuarantineCondition}, column
        part = known.get(_CONDITION.sub("[*]", column["jsonPath"]))
        if column["jsonPath"] == ".metadata.creationTimestamp":
            continue
        assert part is not None, column
        date = part.get("format") == "date-time" and column["type"] in ("date", "string")
        assert date or part["type"] == column["type"] or (part["type"], column["type"]) == ("number", "string"), column
    assert len({c["name"] for c in columns}) == len(columns)
    for name, path in version["subresources"].get("scale", {}).items():
        assert path in known, name


@pytest.mark.parametrize("kind", KINDS)
def test_an_example_is_taken(kind: str) -> None:
    jsonschema.validate(EXAMPLES[kind], schema_of(kind))


@pytest.mark.parametrize(("kind", "part", "value"), WRONG)
def test_what_makes_no_sense_is_refused(kind: str, part: str, value: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**EXAMPLES[kind], part: value}, schema_of(kind))


def test_a_rank_can_be_named_in_three_ways() -> None:
    for way in ({"rank": 0}, {"pod": "llama-2"}, {"node": "n1"}):
        jsonschema.validate({"spec": {"job": "llama", **way, "reason": "a new fan"}}, schema_of("Migration"))
