"""A script that leaves by os._exit says so first."""

from __future__ import annotations

import subprocess
import sys

import pytest

PREPARE = """
import os, sys, threading
from torchrelay.shim.agent_link import announced_exit

class Link:
    def send(self, report):
        os.write(1, f"{report.kind} {report.exit_code}".encode())

announced_exit.install(Link())
"""


def run(script: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", PREPARE + script], capture_output=True, text=True, timeout=60, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.parametrize("code", [0, 7, 255])
def test_its_code_is_told_and_is_its_own(code: int) -> None:
    assert run(f"os._exit({code})") == (code, f"os._exit {code}")


def test_a_forked_process_speaks_for_nobody() -> None:
    script = "pid = os.fork()\nif pid == 0: os._exit(3)\nsys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    assert run(script) == (3, "")


def test_the_real_one_says_nothing() -> None:
    assert run("announced_exit.leave(5)") == (5, "")


def test_what_is_no_number_is_refused_as_ever() -> None:
    code, said = run("os._exit('x')")
    assert (code, said) == (1, "")


def test_a_link_that_hangs_holds_it_up_for_a_second_at_most() -> None:
    script = "announced_exit.AT_MOST_S = 0.1\nLink.send = lambda self, report: threading.Event().wait()\nos._exit(4)"
    assert run(script) == (4, "")
