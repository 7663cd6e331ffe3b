"""SIGTERM in a pod: told to the agent, and held for a while."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap

import pytest

PREPARE = """
import os, signal, sys, time, threading
from torchrelay.shim.agent_link.termination_notice import LastNotice

class Link:
    lost = False
    told = threading.Event()
    def send(self, report):
        print(type(report).__name__, report.reason, flush=True)
        self.told.set()

link = Link()
notice = LastNotice(link, WITHIN_S)
"""


def run(script: str, within_s: float = 60.0) -> tuple[int, str]:
    code = PREPARE.replace("WITHIN_S", str(within_s)) + textwrap.dedent(script)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


def test_the_first_one_is_told_and_the_second_one_ends_it() -> None:
    code, said = run("""
        notice.install()
        os.kill(os.getpid(), signal.SIGTERM)
        link.told.wait(60)
        print("lives", flush=True)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    """)
    assert code == -signal.SIGTERM
    assert said == "MigrationWanted its process was told to end (SIGTERM)\nlives\n"


def test_after_its_time_it_ends_by_the_signal() -> None:
    code, said = run("notice.install(); os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)", within_s=0.2)
    assert (code, "MigrationWanted" in said) == (-signal.SIGTERM, True)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_script_s_own_handler_is_left_to_it(when: str) -> None:
    own = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))"
    lines = [own, "notice.install()"] if when == "before" else ["notice.install()", own]
    assert run("; ".join([*lines, "os.kill(os.getpid(), signal.SIGTERM)", "time.sleep(60)"])) == (7, "")


def test_without_an_agent_it_ends_at_once() -> None:
    code, said = run("notice.install(); link.lost = True; os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)")
    assert (code, said) == (-signal.SIGTERM, "")


def test_a_forked_process_ends_by_it() -> None:
    code, said = run("""
        os.register_at_fork(after_in_child=notice.remove_in_child)
        notice.install()
        pid = os.fork()
        if pid == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """)
    assert (code, said) == (0, "-15\n")
