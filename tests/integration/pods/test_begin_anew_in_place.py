"""A process that begins anew in its place, with a real interpreter."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WITHIN_S = 30.0
PROGRAM = """
import json, os, signal, socket, subprocess, sys, threading
from pathlib import Path

import pytest

whole = dict(os.environ)
out = Path(sys.argv[1])
life = len(list(out.glob("life-*")))
me = {
    "pid": os.getpid(), "argv": sys.orig_argv, "folder": os.getcwd(), "environ": whole,
    "files": sorted(int(n) for n in os.listdir("/proc/self/fd")),
    "blocked": [int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, ())], "timer": signal.getitimer(signal.ITIMER_REAL),
    "children": Path(f"/proc/self/task/{os.getpid()}/children").read_text(),
}
(out / f"life-{life}").write_text(json.dumps(me))
if life == 0:
    from torchrelay.protocol.logs.log_lines import LogLines, LogPart
    from torchrelay.shim.agent_link import start_over
    started = start_over.InterpreterStart.of_this(whole)
    os.environ["CHANGED"] = "1"
    os.chdir("/")
    signal.setitimer(signal.ITIMER_REAL, 1000.0)
    left_open = socket.socket()
    os.set_inheritable(left_open.fileno(), True)
    child = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, text=True, start_new_session=True)
    (out / "family").write_text(f"{child.pid} {child.stdout.readline()}")

    def on_a_thread():
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
        start_over.start_over(started, 77, LogLines(LogPart.SHIM))

    threading.Thread(target=on_a_thread).start()
    threading.Event().wait()
"""


@pytest.mark.core
def test_a_process_that_begins_anew_is_started_in_the_same_way_and_keeps_nothing_of_its_life_before(
    tmp_path: Path,
) -> None:
    program, given = tmp_path / "program.py", os.open("/dev/null", os.O_RDONLY)
    program.write_text(PROGRAM)
    environ = {**os.environ, "GIVEN": "yes"}
    started = subprocess.Popen(
        [sys.executable, "-u", str(program), str(tmp_path)], cwd=tmp_path, env=environ, pass_fds=(given,)
    )
    assert started.wait(WITHIN_S) == 0
    os.close(given)
    first, second = (json.loads((tmp_path / f"life-{n}").read_text()) for n in (0, 1))
    assert second["pid"] == first["pid"] == started.pid
    assert second["argv"] == [sys.executable, "-u", str(program), str(tmp_path)]
    assert second["environ"] == environ
    assert second["folder"] == str(tmp_path)
    assert second["files"] == first["files"]
    assert given in second["files"]
    assert (second["blocked"], second["timer"], second["children"]) == ([], [0.0, 0.0], "")
    family = (tmp_path / "family").read_text().split()
    assert len(family) == 2
    assert not any(_lives(pid) for pid in family)


def test_where_it_cannot_begin_anew_it_ends(tmp_path: Path) -> None:
    program = "from torchrelay.shim.agent_link import start_over; start_over.start_over(None, 77, None)"
    assert subprocess.run([sys.executable, "-c", program], timeout=WITHIN_S, check=False).returncode == 77
    gone = (
        "import os, sys; from torchrelay.shim.agent_link.start_over import InterpreterStart, start_over; "
        "started = InterpreterStart.of_this(os.environ); sys.executable = '/none'; "
        "from torchrelay.protocol.logs.log_lines import LogLines, LogPart; start_over(started, 77, LogLines(LogPart.SHIM))"
    )
    ended = subprocess.run([sys.executable, "-c", gone], timeout=WITHIN_S, check=False, capture_output=True, text=True)
    assert ended.returncode == 77
    assert "this process cannot begin anew: " in ended.stderr


def _lives(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
