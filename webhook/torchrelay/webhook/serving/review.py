"""An admission review in, its answer out (admission.k8s.io/v1)."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Callable
from typing import Any

from torchrelay.protocol.errors import FrameError
from torchrelay.webhook.injection.inject import PodDecision
from torchrelay.webhook.serving.requester import ASKING, requested_by

log = logging.getLogger(__name__)

API_VERSION = "admission.k8s.io/v1"
MAX_WARNING_CHARS = 250
"""The API server cuts longer ones."""


def answer(review: Any, decide: Callable[[dict[str, Any]], PodDecision]) -> dict[str, Any]:
    """Raises FrameError for what is no review of a pod, or of what asks for something; a pod itself always gets an answer."""
    request = review.get("request") if isinstance(review, dict) else None
    if not isinstance(request, dict) or not isinstance(request.get("uid"), str):
        raise FrameError("no admission review: it has no request with a uid")
    made = request.get("object")
    if not isinstance(made, dict):
        raise FrameError("an admission review without an object")
    kind = made.get("kind")
    if kind in ASKING:
        decision = PodDecision(requested_by(made, _before(request), request.get("userInfo")))
    elif kind == "Pod":
        decision = _decision(made, decide, request)
    else:
        raise FrameError(f"an admission review of {kind}, which is neither a pod nor one of {', '.join(ASKING)}")
    response = {"uid": request["uid"], **_response(decision)}
    return {"apiVersion": review.get("apiVersion") or API_VERSION, "kind": "AdmissionReview", "response": response}


def _before(request: dict[str, Any]) -> dict[str, Any] | None:
    """What is changed; None where something is made."""
    before = request.get("oldObject")
    return before if isinstance(before, dict) else None


def _decision(
    pod: dict[str, Any], decide: Callable[[dict[str, Any]], PodDecision], request: dict[str, Any]
) -> PodDecision:
    try:
        return decide(pod)
    except Exception as e:  # the user's pod must start, whatever is wrong with us
        log.exception("a pod in %s could not be prepared", request.get("namespace"))
        return PodDecision(notes=(f"not injected, by a fault of torchrelay: {type(e).__name__}: {e}",))


def _response(decision: PodDecision) -> dict[str, Any]:
    if decision.denied:
        return {"allowed": False, "status": {"code": 400, "message": f"torchrelay: {decision.denied}"}}
    response: dict[str, Any] = {"allowed": True}
    if decision.notes:
        response["warnings"] = [_cut(f"torchrelay: {note}") for note in decision.notes]
    if decision.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(decision.patch).encode()).decode()
    return response


def _cut(text: str) -> str:
    return text if len(text) <= MAX_WARNING_CHARS else text[: MAX_WARNING_CHARS - 1] + "…"
