"""Kubernetes' own schemas, of several releases, from the package kubernetes-validate; read once for each release."""

from __future__ import annotations

import functools
import json
import re
from importlib import resources
from typing import Any

import jsonschema
from referencing import Registry, Resource

_FOLDER = resources.files("kubernetes_validate") / "kubernetes-json-schema"


@functools.cache
def _definitions(release: str) -> Registry[Any]:
    content = json.loads((_FOLDER / f"v{release}.0-local-strict" / "_definitions.json").read_text())
    return (Resource.from_contents(content) @ Registry()).crawl()


@functools.cache
def _validator(release: str, kind: str, api_version: str) -> jsonschema.Draft202012Validator:
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    file = _FOLDER / f"v{release}.0-local-strict" / f"{kind.lower()}-{group}.json"
    return jsonschema.Draft202012Validator(json.loads(file.read_text()), registry=_definitions(release))


def check(manifest: dict[str, Any], release: str) -> None:
    """Raises jsonschema.ValidationError for an unknown field, too; FileNotFoundError for an unknown kind."""
    _validator(release, manifest["kind"], manifest["apiVersion"]).validate(manifest)
