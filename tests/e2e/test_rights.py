"""RBAC as a real API server decides it."""

from __future__ import annotations

import subprocess

import pytest
from support.kube_install import Installation
from support.rights import CONTROLLER, FOR_THE_CONTROLLER, HOME, NOT_FOR_THE_CONTROLLER, WEBHOOK, Right

FOR_THE_WEBHOOK: list[Right] = [
    ("get", "secrets", HOME, "torchrelay-webhook-cert"),
    ("patch", "secrets", HOME, "torchrelay-webhook-cert"),
    ("get", "admissionregistration.k8s.io/mutatingwebhookconfigurations", "", "torchrelay"),
    ("patch", "admissionregistration.k8s.io/mutatingwebhookconfigurations", "", "torchrelay"),
]
NOT_FOR_THE_WEBHOOK: list[Right] = [
    ("get", "secrets", HOME, "torchrelay-ca"),
    ("list", "secrets", HOME, ""),
    ("create", "secrets", HOME, ""),
    ("get", "pods", "default", "any"),
    ("list", "pods", "default", ""),
    ("create", "pods", "default", ""),
    ("patch", "admissionregistration.k8s.io/mutatingwebhookconfigurations", "", "another"),
    ("patch", "torchrelay.dev/migrations", "default", "any"),
]


def may(account: str, right: Right) -> bool:
    verb, resource, namespace, name = right
    grouped = "." in resource or resource.startswith("policy/")
    group, _, plain = resource.partition("/") if grouped else ("", "", resource)
    plain, _, part = plain.partition("/")
    what = [f"{plain}.{group}" if group else plain, *([name] if name else [])]
    command = ["kubectl", "auth", "can-i", verb, "/".join(what), f"--as=system:serviceaccount:{HOME}:{account}"]
    command += [f"--namespace={namespace}"] if namespace else []
    command += [f"--subresource={part}"] if part else []
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    answer = done.stdout.strip().splitlines()[-1]
    assert answer.split()[0] in ("yes", "no"), done.stderr
    return answer.startswith("yes")


@pytest.mark.parametrize("right", FOR_THE_CONTROLLER, ids="-".join)
def test_the_controller_may(torchrelay: Installation, right: Right) -> None:
    assert may(CONTROLLER, right)


@pytest.mark.core
@pytest.mark.parametrize("right", NOT_FOR_THE_CONTROLLER, ids="-".join)
def test_the_controller_may_not(torchrelay: Installation, right: Right) -> None:
    assert not may(CONTROLLER, right)


@pytest.mark.parametrize("right", FOR_THE_WEBHOOK, ids="-".join)
def test_the_webhook_may(torchrelay: Installation, right: Right) -> None:
    assert may(WEBHOOK, right)


@pytest.mark.core
@pytest.mark.parametrize("right", NOT_FOR_THE_WEBHOOK, ids="-".join)
def test_the_webhook_may_not(torchrelay: Installation, right: Right) -> None:
    assert not may(WEBHOOK, right)


@pytest.mark.parametrize("right", [*FOR_THE_CONTROLLER, *FOR_THE_WEBHOOK], ids="-".join)
def test_a_training_pods_account_may_do_nothing(torchrelay: Installation, right: Right) -> None:
    assert not may("default", right)
