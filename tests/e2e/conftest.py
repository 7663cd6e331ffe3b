"""End-to-end tests need a cluster: they are collected by `make e2e` alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

collect_ignore_glob = [] if os.environ.get("TORCHRELAY_E2E") else ["test_*.py"]

if os.environ.get("TORCHRELAY_E2E"):
    from support.kube_install import Installation
    from support.kubectl import Kubectl
    from support.training_pods import Training, summary


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(pytest.mark.e2e)
        item.add_marker(pytest.mark.timeout(420))


@pytest.fixture(scope="session")
def kubectl() -> Kubectl:
    return Kubectl()


@pytest.fixture(scope="session")
def torchrelay(kubectl: Kubectl) -> Iterator[Installation]:
    installation = Installation(kubectl)
    installation.install()
    yield installation
    print(installation.logs())


@pytest.fixture(scope="session")
def undisturbed(kubectl: Kubectl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the ranks of a run without torchrelay have left behind."""
    out = tmp_path_factory.mktemp("undisturbed")
    training = Training(kubectl, "undisturbed", out, protected=False)
    training.start()
    training.wait_until_succeeded()
    training.delete()
    return out


@pytest.fixture
def training(
    kubectl: Kubectl, torchrelay: Installation, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Training]:
    name = request.node.name.removeprefix("test_").replace("_", "-")[:30].strip("-")
    job = Training(kubectl, name, tmp_path)
    yield job
    for migration in job.migrations():
        print(summary(migration))
    if os.environ.get("TORCHRELAY_E2E_KEEP") != "1":
        job.delete()
