"""Who may have a certificate, and for whom an agent may speak."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from support.token_review import review_of

from torchrelay.controller.kube.enrolment.identity import read_review
from torchrelay.controller.kube.jobs.router import check_hello
from torchrelay.protocol import relay_pb2
from torchrelay.protocol.errors import RefusedError
from torchrelay.protocol.messages import AgentHello, Progress, WorkerInfo
from torchrelay.protocol.security.pod_tls import PodIdentity
from torchrelay.protocol.transport.convert import wrap

REVIEW = review_of("train-1", "0a1b2c3d-4")
POD = PodIdentity("team", "train-1", "0a1b2c3d-4")


def test_a_token_names_its_pod() -> None:
    assert read_review(REVIEW) == POD


@pytest.mark.parametrize(
    ("path", "value", "reason"),
    [
        (("authenticated",), False, "not valid"),
        (("audiences",), ["https://kubernetes.default.svc"], "not made for torchrelay"),
        (("audiences",), None, "not made for torchrelay"),
        (("user", "username"), "system:admin", "no service account"),
        (("user", "extra"), {}, "bound to no pod"),
    ],
)
def test_any_other_token_is_refused(path: tuple[str, ...], value: Any, reason: str) -> None:
    review = copy.deepcopy(REVIEW)
    place = review["status"]
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(RefusedError, match=reason):
        read_review(review)


def hello(node: str, *workers: str) -> relay_pb2.FromAgent:
    infos = tuple(WorkerInfo(w, 1, 1) for w in workers)
    return wrap(relay_pb2.FromAgent, AgentHello(node, -1, "10.0.0.1", infos))


def test_an_agent_speaks_for_its_own_pod() -> None:
    assert check_hello(POD, hello("train-1:0a1b2c3d", "train-1:0a1b2c3d.1")).node == "train-1:0a1b2c3d"


@pytest.mark.parametrize(
    "message",
    [
        hello("train-0:0a1b2c3d"),
        hello("train-1:99999999"),
        hello("train-1:0a1b2c3d", "train-0:11111111.1"),
        wrap(relay_pb2.FromAgent, Progress(())),
        None,
    ],
)
def test_and_for_no_other(message: relay_pb2.FromAgent | None) -> None:
    with pytest.raises(RefusedError):
        check_hello(POD, message)
