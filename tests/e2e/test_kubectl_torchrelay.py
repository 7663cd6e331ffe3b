"""`kubectl torchrelay` as kubectl finds it, with a real API server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.kube_install import Installation

NODE = "node-of-a-test"


def ask(*words: str) -> subprocess.CompletedProcess[str]:
    found = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["kubectl", "torchrelay", *words]
    return subprocess.run(command, env=found, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.core
def test_a_node_is_barred_listed_and_cleared(torchrelay: Installation) -> None:
    barred = ask("quarantine", "add", NODE, "--reason", "a test")
    assert barred.returncode == 0, barred.stderr
    listed = ask("quarantine", "list", "--json")
    assert [json.loads(line)["spec"]["node"] for line in listed.stdout.splitlines()] == [NODE], listed
    assert ask("quarantine", "clear", NODE).returncode == 0
    assert ask("quarantine", "list").stdout == "nothing is in quarantine\n"
    again = ask("quarantine", "clear", NODE)
    assert again.returncode == 2
    assert f"{NODE} is not in quarantine" in again.stderr


@pytest.mark.core
def test_a_move_in_a_job_that_is_not_there_is_refused_with_what_there_is(torchrelay: Installation) -> None:
    asked = ask("migrate", "no-such-job", "--rank", "0", "--reason", "a test")
    assert asked.returncode == 2, asked
    assert "no-such-job" in asked.stderr
    assert "hint: kubectl get trainingjobs" in asked.stderr
