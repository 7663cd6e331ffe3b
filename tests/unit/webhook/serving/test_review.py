from __future__ import annotations

import base64
import json
from typing import Any

import jsonpatch
import pytest
from starlette.testclient import TestClient

from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.changed_by import changed_by
from torchrelay.webhook.injection.inject import PodDecision
from torchrelay.webhook.serving.app import MAX_BODY_BYTES, make_app
from torchrelay.webhook.serving.review import MAX_WARNING_CHARS, answer

POD = {"kind": "Pod", "metadata": {"name": "p"}}


def review(pod: Any = POD) -> dict[str, Any]:
    request = {"uid": "u-1", "namespace": "team", "object": pod}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


def test_a_patch_is_sent_as_the_api_server_wants_it() -> None:
    patch = [{"op": "add", "path": "/metadata/labels", "value": {"ü": "x"}}]
    found = answer(review(), lambda _: PodDecision(patch))
    assert (found["apiVersion"], found["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response = found["response"]
    assert (response["uid"], response["allowed"], response["patchType"]) == ("u-1", True, "JSONPatch")
    assert json.loads(base64.b64decode(response["patch"])) == patch


def test_no_patch_is_no_patch() -> None:
    assert answer(review(), lambda _: PodDecision())["response"] == {"uid": "u-1", "allowed": True}


def test_a_denial_says_why() -> None:
    response = answer(review(), lambda _: PodDecision(denied="this is wrong"))["response"]
    assert response == {"uid": "u-1", "allowed": False, "status": {"code": 400, "message": "torchrelay: this is wrong"}}


def test_warnings_are_cut_to_what_the_api_server_shows() -> None:
    response = answer(review(), lambda _: PodDecision(notes=("short", "x" * 1000)))["response"]
    assert response["warnings"][0] == "torchrelay: short"
    assert len(response["warnings"][1]) == MAX_WARNING_CHARS


def test_a_fault_of_ours_lets_the_pod_start_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def fault(_: Any) -> PodDecision:
        raise KeyError("spec")

    response = answer(review(), fault)["response"]
    assert response["allowed"] is True
    assert "patch" not in response
    assert "KeyError" in response["warnings"][0]
    assert "could not be prepared" in caplog.text


@pytest.mark.parametrize("wrong", [None, [], {}, {"request": {}}, review(None), review({"kind": "Service"})])
def test_what_is_no_review_of_a_pod_is_refused(wrong: Any) -> None:
    with pytest.raises(FrameError):
        answer(wrong, lambda _: PodDecision())


def client(decision: PodDecision, not_ready: str = "") -> TestClient:
    return TestClient(make_app(lambda _: decision, lambda: not_ready))


def test_reviews_are_answered_over_http() -> None:
    response = client(PodDecision(denied="no")).post("/mutate", json=review())
    assert response.status_code == 200
    assert response.json()["response"]["allowed"] is False


@pytest.mark.parametrize("body", [b"", b"{", b"{}", b"\xff\xfe", b"[1]", b"[" * 100_000])
def test_garbage_is_refused(body: bytes) -> None:
    assert client(PodDecision()).post("/mutate", content=body).status_code == 400


def test_a_body_without_end_is_not_kept() -> None:
    assert client(PodDecision()).post("/mutate", content=b" " * (MAX_BODY_BYTES + 1)).status_code == 413


def test_the_kubelet_is_told_why_it_is_not_ready() -> None:
    assert client(PodDecision()).get("/readyz").status_code == 200
    waiting = client(PodDecision(), "no certificate yet")
    assert (waiting.get("/readyz").status_code, waiting.get("/readyz").text) == (503, "no certificate yet")
    assert waiting.get("/healthz").status_code == 200


@pytest.mark.parametrize("annotations", [None, {"a": "b", kube.REQUESTED_BY: "somebody else"}])
@pytest.mark.parametrize("kind", ["Migration", "Quarantine", "SparePool"])
def test_who_made_a_request_is_written_into_it_whatever_it_says_itself(kind: str, annotations: Any) -> None:
    made = {"kind": kind, "metadata": {"name": "m", **({"annotations": annotations} if annotations else {})}}
    asked = review(made)
    asked["request"]["userInfo"] = {"username": "alice@example.org", "groups": ["platform"]}
    response = answer(asked, lambda _: PodDecision(denied="a pod"))["response"]
    assert response["allowed"]
    (operation,) = json.loads(base64.b64decode(response["patch"]))
    named = operation["value"] if annotations else operation["value"][kube.REQUESTED_BY]
    assert named == "alice@example.org"
    assert operation["path"].startswith("/metadata/annotations")


def changed(spec: dict[str, Any], says: dict[str, str]) -> dict[str, Any]:
    """The annotations that a pool has once bob has changed it from what alice made."""
    before = {
        "kind": "SparePool",
        "metadata": {"name": "llama", "generation": 3, "annotations": {kube.REQUESTED_BY: "alice", "a": "b"}},
        "spec": {"spares": 1},
    }
    now = {**before, "metadata": {**before["metadata"], "annotations": says}, "spec": spec}
    asked = review(now)
    asked["request"] |= {"operation": "UPDATE", "oldObject": before, "userInfo": {"username": "bob"}}
    response = answer(asked, lambda _: PodDecision(denied="a pod"))["response"]
    patch = json.loads(base64.b64decode(response["patch"])) if "patch" in response else []
    found: dict[str, Any] = jsonpatch.apply_patch(now, patch)["metadata"]["annotations"]
    return found


def test_who_changed_it_is_written_with_the_generation_that_the_change_makes() -> None:
    now = changed({"spares": 4}, {kube.REQUESTED_BY: "alice"})
    assert now == {kube.REQUESTED_BY: "alice", kube.CHANGED_BY: "4 bob"}
    assert changed_by({"metadata": {"generation": 4, "annotations": now}}) == "bob"


def test_a_change_of_what_nobody_has_signed_adds_nothing() -> None:
    before = {"kind": "SparePool", "metadata": {"name": "llama", "generation": 3}, "spec": {"spares": 1}}
    asked = review({**before, "status": {"ready": 1}})
    asked["request"] |= {"operation": "UPDATE", "oldObject": before, "userInfo": {"username": "bob"}}
    assert "patch" not in answer(asked, lambda _: PodDecision(denied="a pod"))["response"]


@pytest.mark.parametrize("says", [{}, {kube.REQUESTED_BY: "eve"}, {kube.CHANGED_BY: "3 eve"}])
def test_what_is_written_down_cannot_be_changed_by_what_a_resource_says_of_itself(says: dict[str, str]) -> None:
    assert changed({"spares": 1}, {**says, "mine": "x"}) == {kube.REQUESTED_BY: "alice", "mine": "x"}
