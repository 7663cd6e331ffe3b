"""Commands to the cluster of `tests/e2e/cluster`: any other cannot be unplugged from here."""

from __future__ import annotations

import os
import subprocess

import pytest

CLUSTER = os.environ.get("TORCHRELAY_E2E_CLUSTER", "")

needs_test_cluster = pytest.mark.skipif(not CLUSTER, reason="only the test cluster can be broken from here")


def cluster(*arguments: str) -> None:
    """Raises AssertionError with what it says."""
    done = subprocess.run([CLUSTER, *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
