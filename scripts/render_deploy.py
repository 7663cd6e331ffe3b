"""Renders the Helm chart without helm, with the same code as helm's.

`python scripts/render_deploy.py` writes deploy/kustomize anew; `--check` only says whether it is as the chart makes it;
`--values FILE --namespace NAME` prints what `helm template` would.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import helm_python
import yaml

ROOT = Path(__file__).parent.parent
CHART = ROOT / "deploy" / "chart"
CRDS = ROOT / "deploy" / "crds"
KUSTOMIZE = ROOT / "deploy" / "kustomize"
NAMESPACE = "torchrelay-system"
VALUES_OF_KUSTOMIZE: dict[str, Any] = {"namespace": {"create": True}}
_ON = {"enabled": True}
VALUES_OF_MONITORING = VALUES_OF_KUSTOMIZE | {
    "metrics": {"enabled": True, "serviceMonitor": _ON, "podMonitor": _ON, "rules": _ON, "dashboard": _ON}
}
_KINDS_FIRST = ("Namespace", "ServiceAccount", "Secret", "ConfigMap")
_MANAGED_BY = "app.kubernetes.io/managed-by"
_HEAD = "# Made by scripts/render_deploy.py from deploy/chart: change it there.\n"


def render(values: dict[str, Any], namespace: str = NAMESPACE) -> list[dict[str, Any]]:
    """Return the chart's objects, in the order in which they can be applied. Raises helm_python.HelmError."""
    with helm_python.Chart.load(CHART) as chart:
        files = chart.render(values, name="torchrelay", namespace=namespace)
    documents = [d for name, text in sorted(files.items()) if name.endswith(".yaml") for d in yaml.safe_load_all(text)]
    objects = [d for d in documents if d]
    return sorted(objects, key=lambda o: _KINDS_FIRST.index(o["kind"]) if o["kind"] in _KINDS_FIRST else 9)


def crds() -> list[dict[str, Any]]:
    return [yaml.safe_load(p.read_text()) for p in sorted(CRDS.glob("*.yaml"))]


def text_of(objects: list[dict[str, Any]]) -> str:
    return "---\n".join(yaml.safe_dump(o, sort_keys=False, width=120) for o in objects)


def kustomize_files() -> dict[str, str]:
    """Return the files below deploy/kustomize, by name. Monitoring adds some objects, and changes others with patches."""
    objects, watched = _of_kustomize(VALUES_OF_KUSTOMIZE), _of_kustomize(VALUES_OF_MONITORING)
    before = {_key(found): found for found in objects}
    more = [found for found in watched if _key(found) not in before]
    changed = [found for found in watched if before.get(_key(found), found) != found]
    return {
        "crds.yaml": _HEAD + text_of(crds()),
        "torchrelay.yaml": _HEAD + text_of(objects),
        "monitoring/monitoring.yaml": _HEAD + text_of(more),
        "monitoring/patches.yaml": _HEAD + text_of(changed),
    }


def _of_kustomize(values: dict[str, Any]) -> list[dict[str, Any]]:
    objects = render(values)
    for found in objects:
        labels = found["metadata"].get("labels", {})
        if labels.get(_MANAGED_BY) == "Helm":
            labels[_MANAGED_BY] = "kustomize"
    return objects


def _key(found: dict[str, Any]) -> tuple[str, str, str]:
    return found["kind"], found["metadata"].get("namespace", ""), found["metadata"]["name"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--values", type=Path)
    parser.add_argument("--namespace", default=NAMESPACE)
    given = parser.parse_args()
    if given.values:
        values = yaml.safe_load(given.values.read_text()) or {}
        print(text_of(crds() + render(values, given.namespace)), end="")
        return 0
    stale = []
    for name, text in kustomize_files().items():
        file = KUSTOMIZE / name
        if not given.check:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        elif not file.exists() or file.read_text() != text:
            stale.append(str(file.relative_to(ROOT)))
    if stale:
        print(f"not as the chart makes it: {', '.join(stale)}; run scripts/render_deploy.py", file=sys.stderr)
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
