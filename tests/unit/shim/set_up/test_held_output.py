from __future__ import annotations

import subprocess
import sys

HELD = """
import os, subprocess, sys
from torchrelay.shim.set_up.held_output import HeldOutput
print("before, buffered")
out = sys.stdout
hold = HeldOutput()
hold.start()
print("set-up")
print("set-up's error", file=sys.stderr)
os.write(1, b"by descriptor\\n")
subprocess.run(["echo", "from a child"])
{middle}
print("after", sys.stdout is out)
"""


def run(middle: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", HELD.format(middle=middle)], capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout, done.stderr


def test_what_is_printed_meanwhile_is_dropped_and_the_order_of_the_rest_is_kept() -> None:
    assert run("hold.close()") == ("before, buffered\nafter True\n", "")


def test_what_was_held_is_shown_when_something_goes_wrong() -> None:
    out, err = run("hold.show()")
    assert out == "before, buffered\nafter True\n"
    assert sorted(err.splitlines()) == ["by descriptor", "from a child", "set-up", "set-up's error"]


def test_only_the_end_of_a_long_output_is_shown() -> None:
    _, err = run("print('x' * 100_000 + 'end')\nhold.show()")
    assert len(err) == 64 << 10
    assert err.endswith("xend\n")


def test_descriptors_are_given_back() -> None:
    count = "len(os.listdir('/proc/self/fd'))"
    middle = f"count = {count}\nhold.close()\nhold.close()\nprint({count} - count)"
    assert run(middle)[0] == "before, buffered\n-3\nafter True\n"
