"""What set-up reads from standard input is given again in a joiner; what training reads ends protection."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HEAD = """
import sys
from pathlib import Path
from torchrelay.shim.set_up.recording import SetUp
record = Path("record")
set_up = SetUp(record.read_bytes() if record.exists() else b"")
set_up.on_input = lambda reason: print("protection ends:", reason)
set_up.begin()
"""
TAIL = """
if not record.exists(): record.write_bytes(set_up.snapshot())
"""


def source(body: str) -> str:
    return HEAD + textwrap.dedent(body) + TAIL


def run(folder: Path, body: str, stdin: int | bytes) -> str:
    """The output of a process with this set-up, a rank's or a joiner's if a rank has left its record."""
    (folder / "script.py").write_text(source(body))
    given = {"input": stdin} if isinstance(stdin, bytes) else {"stdin": stdin}
    done = subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, timeout=60, **given)  # type: ignore[call-overload]  # one of two
    return done.stdout.decode() + "".join(done.stderr.decode().splitlines()[-1:])


def in_rank_and_joiner(folder: Path, body: str, stdin: bytes) -> tuple[str, str]:
    return run(folder, body, stdin), run(folder, body, subprocess.DEVNULL)


EACH_WAY = """
import fileinput, json, pickle
text, binary = sys.stdin, sys.stdin.buffer
print(input("prompt: "), input())
print(repr(text.readline()), next(text), text.read(2), text.readline(3))
print(text.readlines(1), json.loads(text.readline()))
for line in text:
    print(line)
    if "last" in line: break
print(list(fileinput.input([])), repr(text.read()))
try: input()
except EOFError: print("over")
"""
BYTES = """
import pickle
binary = sys.stdin.buffer
print(pickle.load(binary), binary.readline(), binary.peek(1)[:2], binary.read1(3), next(binary), binary.read(2))
room = bytearray(4)
print(binary.readinto(room), room, binary.readinto1(memoryview(room)[:1]), room)
print(list(binary), binary.read(), binary.readline())
"""


def test_each_way_to_read_text_gives_a_joiner_the_same(tmp_path: Path) -> None:
    lines = b'one\ntwo\nthree\nfour\nfive\nsix\n{"a": 1}\nseven\nthe last\nmore\nlines\n'
    rank, joiner = in_rank_and_joiner(tmp_path, EACH_WAY, lines)
    assert rank.removeprefix("prompt: ") == joiner, "nobody is asked again"
    assert rank.splitlines()[:2] == ["prompt: one two", "'three\\n' four"]
    assert rank.splitlines()[-2:] == ["['more\\n', 'lines\\n'] ''", "over"]


def test_each_way_to_read_bytes_gives_a_joiner_the_same(tmp_path: Path) -> None:
    import pickle

    rank, joiner = in_rank_and_joiner(
        tmp_path, BYTES, pickle.dumps({"a": [1, 2]}) + b"line\nabcdefgh\n012345678\nend\n"
    )
    assert rank == joiner
    assert rank.startswith("{'a': [1, 2]} b'line\\n' b'ab' b'abc' b'defgh\\n' b'01'\n4 bytearray(b'6345') 1")


def test_a_rank_reads_what_it_would_read_without_us(tmp_path: Path) -> None:
    lines = b'one\ntwo\nthree\nfour\nfive\nsix\n{"a": 1}\nseven\nthe last\nmore\nlines\n'
    plain = subprocess.run(
        [sys.executable, "-c", "import sys\n" + EACH_WAY], input=lines, capture_output=True, check=True, timeout=60
    )
    assert run(tmp_path, EACH_WAY, lines) == plain.stdout.decode()


def test_what_is_typed_at_a_terminal_is_given_again(tmp_path: Path) -> None:
    ours, terminal = pty.openpty()
    try:
        os.write(ours, b"yes\nno\n")
        body = "print(sys.stdin.isatty(), input('sure? '), sys.stdin.readline())"
        rank = run(tmp_path, body, terminal)
    finally:
        os.close(ours)
        os.close(terminal)
    assert "True" in rank
    assert "yes no\n" in rank
    joiner = run(tmp_path, body, subprocess.DEVNULL)
    assert "yes no\n" in joiner


def test_a_joiner_that_asks_for_more_than_the_lost_rank_fails(tmp_path: Path) -> None:
    assert run(tmp_path, "print(input())", b"one\ntwo\n") == "one\n"
    joiner = run(tmp_path, "for _ in range(2): print(input())", subprocess.DEVNULL)
    assert "StateMismatchError" in joiner
    assert "set-up asks for standard input more often" in joiner


def test_training_that_reads_is_told_before_it_has_what_it_reads_and_once(tmp_path: Path) -> None:
    body = """
    print(input())
    set_up.at_boundary(0)
    for _ in range(2):
        print("step 1", input())
        set_up.go_back()
    set_up.at_boundary(1)
    for _ in range(2): print(next(sys.stdin))
    """
    out = run(tmp_path, body, b"one\ntwo\nthree\nfour\n").splitlines()
    assert out[:3] == ["one", "step 1 two", "step 1 two"]
    assert out[3].startswith("protection ends: training reads standard input (")
    assert out[3].endswith("script.py:16), which cannot be read a second time")
    assert [line for line in out[4:] if line] == ["three", "four"]


def test_what_another_thread_reads_in_set_up_cannot_be_handed_on(tmp_path: Path) -> None:
    body = """
    import threading
    thread = threading.Thread(target=lambda: print(sys.stdin.readline()))
    thread.start(); thread.join()
    print(set_up.lost)
    """
    assert "set-up reads standard input on a thread of its own" in run(tmp_path, body, b"one\n")


@pytest.mark.parametrize("body", ["print(type(sys.stdin).__name__, input())", "print(sys.stdin.read(1) == '', 1)"])
def test_where_standard_input_is_empty_for_all_it_stays_what_it_is(tmp_path: Path, body: str) -> None:
    told = run(tmp_path, body, subprocess.DEVNULL)
    assert "EOFError" in told if "input" in body else told == "True 1\n"
    assert run(tmp_path, "print(type(sys.stdin).__name__)", subprocess.DEVNULL) == "TextIOWrapper\n"


def test_a_stream_that_somebody_has_put_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import io, sys\nsys.stdin = io.StringIO('theirs\\n')\n")
    (tmp_path / "script.py").write_text(source("print(input(), type(sys.stdin).__name__)"))
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        input=b"ours\n",
        capture_output=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))},
    )
    assert done.stdout == b"theirs StringIO\n"
