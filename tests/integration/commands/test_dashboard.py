"""`torchrelay dashboard` as a process of its own."""

from __future__ import annotations

import signal
import urllib.request
from pathlib import Path

import pytest
from support import told_runs as t
from support.cli_harness import Cli

pytestmark = pytest.mark.core


def test_a_dashboard_of_a_file_tells_where_it_is_and_ends_quietly_while_somebody_looks(tmp_path: Path) -> None:
    path = t.write(t.small_run(), tmp_path / "events.jsonl")
    with Cli(tmp_path) as cli:
        process = cli.start("dashboard", str(path), "--port", "0")
        assert process.stderr is not None
        said = process.stderr.readline()
        address = said.split(" at ")[1].split()[0]
        assert "torchrelay" in urllib.request.urlopen(address, timeout=30).read().decode()
        with urllib.request.urlopen(f"{address}api/runs/7e70abbe/stream", timeout=30) as stream:
            while not stream.readline().startswith(b"event: report"):
                pass
            process.send_signal(signal.SIGINT)
            _, rest = process.communicate(timeout=30)
        assert rest == ""
        assert process.returncode == 130
