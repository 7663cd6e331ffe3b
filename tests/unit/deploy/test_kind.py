"""The configuration for kind, which nobody here can run: its shape, and that its nodes have what pods of the tests mount."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import training_pods
from support.training_pods import ROOT, Training

HERE = ROOT / "tests/e2e/kind"


@pytest.fixture
def config() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kind_config", HERE / "config.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def is_below(path: str, folder: str) -> bool:
    return Path(path).is_relative_to(folder)


def test_every_folder_that_a_training_pod_mounts_is_there_on_every_worker(
    config: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_pods, "ON_NODES", "/of-the-host")
    made: dict[str, Any] = config.kind_config(str(tmp_path), "/of-the-host")
    assert (made["kind"], made["apiVersion"]) == ("Cluster", "kind.x-k8s.io/v1alpha4")
    workers = [n for n in made["nodes"] if n["role"] == "worker"]
    assert len(workers) == 3
    out = tmp_path / "pytest/some-test"
    pod = Training(None, "llama", out).pod(0)  # type: ignore[arg-type]  # a stand-in
    wanted = [v["hostPath"]["path"] for v in pod["spec"]["volumes"]]
    assert f"/of-the-host{out}" in wanted
    for worker in workers:
        for path in wanted:
            (mount,) = (m for m in worker["extraMounts"] if is_below(path, m["containerPath"]))
            assert mount["containerPath"] == f"/of-the-host{mount['hostPath']}"
            assert mount.get("readOnly", False) is not is_below(str(out), mount["hostPath"])


def test_without_docker_it_is_said_what_is_missing(tmp_path: Path) -> None:
    for tool in ("bash", "dirname"):
        (tmp_path / tool).symlink_to(f"/usr/bin/{tool}")
    done = subprocess.run(
        ["/usr/bin/bash", str(HERE / "run.sh")],
        env={**os.environ, "PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, "make e2e-kind needs docker\n")


def test_the_configuration_is_printed_as_json_which_is_yaml(config: ModuleType, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(HERE / "config.py"), str(tmp_path), "/of-the-host"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout) == config.kind_config(str(tmp_path), "/of-the-host")
