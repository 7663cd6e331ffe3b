"""Custom resources as a real API server takes them."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from support.custom_resources import EXAMPLES, SHORT_NAMES, WRONG
from support.kube_install import Installation
from support.kubectl import Kubectl

from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.changed_by import changed_by


def manifest(kind: str, spec: dict[str, Any]) -> str:
    # Of a job that nobody runs: nothing begins.
    return json.dumps({"apiVersion": kube.API_VERSION, "kind": kind, "metadata": {"name": "of-a-test"}, "spec": spec})


@pytest.mark.parametrize("kind", sorted(EXAMPLES))
def test_an_example_is_taken(kubectl: Kubectl, torchrelay: Installation, kind: str) -> None:
    kubectl("create", "--dry-run=server", "--filename=-", stdin=manifest(kind, EXAMPLES[kind]["spec"]))


@pytest.mark.parametrize(("kind", "spec"), [(kind, value) for kind, part, value in WRONG if part == "spec"])
def test_what_makes_no_sense_is_refused(
    kubectl: Kubectl, torchrelay: Installation, kind: str, spec: dict[str, Any]
) -> None:
    done = subprocess.run(
        ["kubectl", "create", "--validate=false", "--dry-run=server", "--filename=-"],
        input=manifest(kind, spec),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert f'The {kind} "of-a-test" is invalid' in done.stderr


@pytest.mark.parametrize(
    ("short", "columns"),
    [
        ("tj", ["OWNER", "PHASE", "RANKS", "STEP", "SPARES", "PROTECTION", "MIGRATIONS", "AGE"]),
        ("sp", ["JOB", "WANTED", "READY", "WARM", "AGE"]),
        ("mig", ["JOB", "RANK", "KIND", "PHASE", "OUTCOME", "FROM", "TO", "AGE"]),
        ("quar", ["NODE", "DEVICE", "INFORCE", "DRAINED", "SINCE", "UNTIL", "REASON"]),
    ],
)
def test_short_names_and_columns_are_there(
    kubectl: Kubectl, torchrelay: Installation, short: str, columns: list[str]
) -> None:
    kind = next(k for k, name in SHORT_NAMES.items() if name == short)
    kubectl("create", "--filename=-", stdin=manifest(kind, EXAMPLES[kind]["spec"]))
    try:
        head = kubectl("get", short, "of-a-test").splitlines()[0].split()
    finally:
        kubectl("delete", short, "of-a-test")
    assert head == ["NAME", *columns]


@pytest.mark.core
def test_who_has_made_and_who_has_changed_a_resource_is_written_down_whatever_it_says_itself(
    kubectl: Kubectl, torchrelay: Installation
) -> None:
    def found() -> dict[str, Any]:
        resource: dict[str, Any] = json.loads(kubectl("get", "sparepool", "of-a-test", "--output=json"))
        return resource

    kubectl("create", "--filename=-", stdin=manifest("SparePool", EXAMPLES["SparePool"]["spec"]))
    try:
        user = changed_by(found())  # as the cluster's own certificates call it
        assert user
        eve = {kube.REQUESTED_BY: "eve", kube.CHANGED_BY: "2 eve"}
        patch = json.dumps({"metadata": {"annotations": eve}, "spec": {"spares": 7}})
        kubectl("patch", "sparepool", "of-a-test", "--type=merge", f"--patch={patch}")
        assert found()["metadata"]["annotations"] == {kube.REQUESTED_BY: user, kube.CHANGED_BY: f"2 {user}"}
        kubectl("scale", "sparepool", "of-a-test", "--replicas=2")
        assert changed_by(found()) != user  # the webhook has not seen that
    finally:
        kubectl("delete", "sparepool", "of-a-test")
