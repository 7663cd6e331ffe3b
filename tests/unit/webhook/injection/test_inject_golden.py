"""Every kind of pod that is known, and what is done to it. `TORCHRELAY_UPDATE_GOLDEN=1` writes the golden files anew."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import jsonpatch
import pytest
import yaml
from support import kube_schema

from torchrelay.protocol.kube import kube_names as kube
from torchrelay.webhook.injection.inject import PodDecision, injected, patch
from torchrelay.webhook.settings import WebhookSettings

HERE = Path(__file__).parent
PODS = sorted(p.stem for p in (HERE / "pods").glob("*.yaml"))
LEFT_ALONE = {"windows", "not-python", "hostpath-in-the-way", "volume-with-our-name"}
CLASSIC_TOO = ["bare", "trainjob", "istio"]
CASES = [(name, kube.NATIVE) for name in PODS] + [(name, kube.CLASSIC) for name in CLASSIC_TOO]
AUTHORITY = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
RELEASES = {kube.NATIVE: ("1.29", "1.32", "1.36"), kube.CLASSIC: ("1.25", "1.36")}


def settings(sidecar: str = kube.NATIVE) -> WebhookSettings:
    plain = WebhookSettings(sidecar=sidecar)
    return dataclasses.replace(plain, agent=dataclasses.replace(plain.agent, image="torchrelay/agent:golden"))


def pod(name: str) -> dict[str, Any]:
    return yaml.safe_load((HERE / "pods" / f"{name}.yaml").read_text())


def readable(decision: PodDecision) -> str:
    text = {"denied": decision.denied, "notes": list(decision.notes), "patch": decision.patch}
    return yaml.safe_dump(json.loads(json.dumps(text)), sort_keys=False, width=110)  # without anchors


@pytest.fixture(autouse=True)
def _stable_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchrelay.webhook.injection.inject.VERSION", "1.2.3")


@pytest.mark.parametrize(("name", "sidecar"), CASES)
def test_the_patch_is_the_one_that_is_on_file(name: str, sidecar: str) -> None:
    found = readable(patch(pod(name), settings(sidecar), AUTHORITY))
    golden = HERE / "golden" / (f"{name}.yaml" if sidecar == kube.NATIVE else f"{name}-{sidecar}.yaml")
    if os.environ.get("TORCHRELAY_UPDATE_GOLDEN") == "1":
        golden.write_text(found)
    assert found == golden.read_text()


def test_there_is_no_golden_file_without_a_pod() -> None:
    of_cases = {name if sidecar == kube.NATIVE else f"{name}-{sidecar}" for name, sidecar in CASES}
    assert {p.stem for p in (HERE / "golden").glob("*.yaml")} == of_cases


@pytest.mark.parametrize(("name", "sidecar"), CASES)
def test_the_patch_makes_the_pod_that_was_meant(name: str, sidecar: str) -> None:
    before = pod(name)
    untouched = copy.deepcopy(before)
    new, decision = injected(before, settings(sidecar), AUTHORITY)
    assert before == untouched
    assert jsonpatch.apply_patch(before, patch(before, settings(sidecar), AUTHORITY).patch) == new
    assert new != before
    assert not decision.denied


@pytest.mark.parametrize(("name", "sidecar"), CASES)
def test_a_pod_that_comes_again_is_as_it_should_be(name: str, sidecar: str) -> None:
    new, _ = injected(pod(name), settings(sidecar), AUTHORITY)
    again = patch(new, settings(sidecar), AUTHORITY)
    assert again.patch == []


@pytest.mark.parametrize(("name", "sidecar"), CASES)
def test_the_pod_fits_the_schema_of_kubernetes(name: str, sidecar: str) -> None:
    new, _ = injected(pod(name), settings(sidecar), AUTHORITY)
    for release in RELEASES[sidecar]:
        kube_schema.check(new, release)


@pytest.mark.parametrize("name", sorted(set(PODS) - LEFT_ALONE))
def test_nothing_of_the_user_is_lost(name: str) -> None:
    before = pod(name)
    new, _ = injected(before, settings(), AUTHORITY)
    spec, old = new["spec"], before["spec"]
    assert {k: v for k, v in spec.items() if k in old and not isinstance(v, list)} == {
        k: v for k, v in old.items() if not isinstance(v, list)
    }
    assert spec["volumes"][: len(old.get("volumes", []))] == old.get("volumes", [])
    assert spec["initContainers"][: len(old.get("initContainers", []))] == old.get("initContainers", [])
    for a, b in zip(old["containers"], spec["containers"]):
        assert {k: v for k, v in b.items() if k not in ("env", "volumeMounts")} == {
            k: v for k, v in a.items() if k not in ("env", "volumeMounts")
        }
        assert b.get("volumeMounts", [])[: len(a.get("volumeMounts", []))] == a.get("volumeMounts", [])
    old_labels = before["metadata"].get("labels", {})
    assert {k: v for k, v in new["metadata"]["labels"].items() if k in old_labels} == old_labels


@pytest.mark.parametrize("name", sorted(LEFT_ALONE))
def test_what_cannot_be_injected_runs_as_it_is_and_says_why(name: str) -> None:
    before = pod(name)
    new, decision = injected(before, settings(), AUTHORITY)
    assert new["spec"] == before["spec"]
    assert new["metadata"]["annotations"].pop(kube.NOT_INJECTED) == decision.notes[0]
    assert new["metadata"] == before["metadata"]
