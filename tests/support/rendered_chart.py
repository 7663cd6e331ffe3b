"""The objects of deploy/, as scripts/render_deploy.py makes them, and what they let a service account do."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location("render_deploy", ROOT / "scripts" / "render_deploy.py")
assert _spec is not None
assert _spec.loader is not None
render_deploy = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(render_deploy)

EVERYWHERE = "*"


@dataclass(frozen=True)
class Grant:
    """`namespace`: EVERYWHERE for all of them, and for what is in none. `name`: "" for any."""

    namespace: str
    group: str
    resource: str
    verb: str
    name: str = ""


def grants(objects: list[dict[str, Any]], account: str) -> set[Grant]:
    rules = {
        (o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"]): o["rules"]
        for o in objects
        if o["kind"] in ("Role", "ClusterRole")
    }
    found = set()
    for binding in objects:
        if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        if account not in [s["name"] for s in binding["subjects"]]:
            continue
        namespace = binding["metadata"].get("namespace", "")
        role = binding["roleRef"]
        for rule in rules[(role["kind"], namespace if role["kind"] == "Role" else "", role["name"])]:
            found |= {
                Grant(namespace or EVERYWHERE, group, resource, verb, name)
                for group in rule["apiGroups"]
                for resource in rule["resources"]
                for verb in rule["verbs"]
                for name in rule.get("resourceNames", [""])
            }
    return found


def may(given: set[Grant], verb: str, resource: str, namespace: str, name: str = "") -> bool:
    """As an API server decides it; `resource` is `GROUP/RESOURCE`, or `RESOURCE` of the core group."""
    grouped = "." in resource or resource.startswith("policy/")
    group, _, plain = resource.partition("/") if grouped else ("", "", resource)
    return any(
        g.namespace in (EVERYWHERE, namespace)
        and (g.group, g.resource, g.verb) == (group, plain, verb)
        and g.name in ("", name)
        for g in given
    )
