from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

from torchrelay.agent.processes import die_with_parent

PARENT = """
import os, subprocess, sys
child = [sys.executable, "-c", "import sys; print('here', flush=True); sys.stdin.read()"]
subprocess.run([sys.executable, "-I", "-S", sys.argv[1], str(os.getpid()), '0', *child])
"""


def test_what_is_started_late_dies_with_whoever_started_it() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, die_with_parent.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "here\n"
        assert not select.select((parent.stdout,), (), (), 0)[0]
        parent.send_signal(signal.SIGKILL)
        assert parent.stdout.read() == "", "the command holds the other end as long as it lives"


def test_a_parent_that_is_gone_already_leaves_nothing_behind() -> None:
    somebody_else = os.getpid() + 1
    command = [sys.executable, "-I", "-S", die_with_parent.__file__, str(somebody_else), "0", "echo", "started"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (125, "")


def test_with_a_niceness_the_command_has_the_lowest_priority_and_goes_first_when_memory_gets_short() -> None:
    shown = "import os; print(os.nice(0), open('/proc/self/oom_score_adj').read().strip())"
    wrapper = [
        sys.executable,
        "-I",
        "-S",
        die_with_parent.__file__,
        str(os.getpid()),
        "19",
        sys.executable,
        "-c",
        shown,
    ]
    done = subprocess.run(wrapper, capture_output=True, text=True, check=True)
    assert done.stdout == "19 1000\n"
