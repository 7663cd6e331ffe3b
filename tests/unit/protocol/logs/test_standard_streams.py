"""What torchrelay says may be lost; it ends nobody, and changes no exit code."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from torchrelay.protocol.logs import standard_streams
from torchrelay.protocol.logs.standard_streams import print_result, unfailing

SAYS = """
import logging, sys
from torchrelay.protocol.logs.log_lines import LogLines, LogPart
from torchrelay.protocol.logs.log_records import set_up
lines = LogLines(LogPart.AGENT)
set_up(lines, logging.WARNING, "%(message)s")
for _ in range(3):
    lines.say("a line")
    logging.getLogger("a").warning("a record")
"""


@pytest.fixture
def broken_pipe() -> Iterator[int]:
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def run(script: str, stderr: int) -> int:
    return subprocess.run([sys.executable, "-c", script], stderr=stderr, timeout=60, check=False).returncode


def test_a_process_goes_on_and_ends_with_0_when_nobody_reads_what_it_says(broken_pipe: int) -> None:
    assert run("import sys; print('a line', file=sys.stderr)", broken_pipe) != 0, "Python itself minds"
    assert run(SAYS, broken_pipe) == 0


def test_a_process_goes_on_and_ends_with_0_when_the_disk_of_its_log_is_full() -> None:
    with open("/dev/full", "wb") as full:
        assert run(SAYS, full.fileno()) == 0


def test_what_can_be_written_is_there_at_once_and_in_order(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w", encoding="ascii") as log:
        log.write("before\n")
        stream = unfailing(log)
        print("a line, é", file=stream)
        assert (tmp_path / "log").read_text() == "before\na line, \\xe9\n"
        del stream
        log.write("after\n")  # the file is still open
    assert (tmp_path / "log").read_text().endswith("after\n")


def test_a_stream_in_memory_is_used_as_it_is() -> None:
    stream = io.StringIO()
    assert unfailing(stream) is stream


def test_a_result_that_cannot_be_written_is_an_error_and_leaves_nothing_behind() -> None:
    script = (
        "from torchrelay.protocol.logs.standard_streams import print_result\n"
        "try:\n    print_result('a' * 9)\nexcept OSError:\n    pass\nelse:\n    raise SystemExit(3)"
    )
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-c", script], stdout=full, timeout=60, check=False)
    assert done.returncode == 0


def test_a_result_is_a_line_on_stdout(capfd: pytest.CaptureFixture[str]) -> None:
    print_result("é")
    assert capfd.readouterr().out == "é\n"


def test_streams_that_were_closed_are_open_for_whoever_is_started(tmp_path: Path) -> None:
    script = (
        "from torchrelay.protocol.logs.standard_streams import open_closed_ones\n"
        "open_closed_ones()\n"
        "import subprocess, sys\n"
        f"file = open({str(tmp_path / 'file')!r}, 'w')\n"
        "print('to nobody'); print('to nobody', file=sys.stderr)\n"
        "code = subprocess.call([sys.executable, '-c', 'import sys; print(1); print(1, file=sys.stderr); sys.stdin.read()'])\n"
        "file.write(f'{code} {file.fileno() > 2}')\n"
    )
    done = subprocess.run(
        ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, script], timeout=60, check=False
    )
    assert done.returncode == 0
    assert (tmp_path / "file").read_text() == "0 True"


def test_no_line_is_written_where_there_is_no_stderr(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    standard_streams.write_line("a line")
    assert capfd.readouterr() == ("", "")
