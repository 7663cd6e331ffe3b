"""An agent that is started before its configuration is known."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torchrelay.protocol.names import EXIT_USAGE

pytestmark = pytest.mark.core


@pytest.mark.parametrize(
    ("told", "code", "said"),
    [("", 0, ""), ("\n", EXIT_USAGE, "agent.json cannot be read")],
    ids=["closed pipe", "a line"],
)
def test_an_agent_that_waits_reads_its_configuration_when_it_is_told_to_and_ends_with_the_pipe(
    told: str, code: int, said: str, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "torchrelay.agent", "--config", str(tmp_path / "agent.json"), "--wait"]
    done = subprocess.run(command, input=told, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code
    assert done.stdout == ""
    assert said in done.stderr
    assert bool(done.stderr) == bool(said)
