from __future__ import annotations

import subprocess
import sys

POD = """
apiVersion: v1
kind: Pod
metadata: {name: one}
spec: {containers: [{name: main, image: x}]}
"""


def inject(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torchrelay.cli", "inject", *arguments]
    return subprocess.run(command, input=POD, capture_output=True, text=True, timeout=60, check=False)


def test_inject_prints_the_prepared_manifest() -> None:
    done = inject("-f", "-", "--sidecar", "native")
    assert done.returncode == 0
    assert "torchrelay-agent" in done.stdout
    assert "TORCHRELAY_CA" in done.stderr


def test_inject_refuses_what_it_does_not_know() -> None:
    assert inject("--nonsense").returncode == 2
    assert "-f" in inject("--help").stdout
