"""Scripts with and without the shim: standard output, standard error and wait status are the same, byte for byte."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from support.run_script import interpreters, run_plain, run_with_shim
from support.scripts import HELPER_FILES, SCRIPTS

PYTHONS = interpreters()
HASH_SEED = {"PYTHONHASHSEED": "0"}

# How the inert runtime must have seen the script end, where that is not plain from the name.
ENDS_WITHOUT_A_WORD = {"os_exit", "killed"}
TOO_DEEP = "deep_nesting"
NEVER_RUNS = {
    "syntax_error", "syntax_error_from_the_compiler", "indentation_error", "tab_error", "null_byte", "not_utf8",
    "unknown_cookie",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    for name, source in HELPER_FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(source)
    return folder


@pytest.mark.parametrize("python", PYTHONS, ids=lambda p: "running" if p == sys.executable else Path(p).parts[-3])
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_does_what_it_does_without_the_shim(folder: Path, python: str, name: str) -> None:
    (folder / "script.py").write_bytes(SCRIPTS[name])
    command = [python, "script.py", "--argument", "value"]
    plain = run_plain(command, folder, stdin="one\ntwo\nend\n", env=HASH_SEED)
    shimmed = run_with_shim(command, folder, stdin="one\ntwo\nend\n", env=HASH_SEED)
    assert shimmed == plain
    calls = [call.split(":")[0] for call in shimmed.calls]
    if name == TOO_DEEP:
        assert calls == ["disable"]
    else:
        assert calls == ([] if name in ENDS_WITHOUT_A_WORD | NEVER_RUNS else ["finish"])
    assert len(shimmed.reports) == 1


@pytest.mark.parametrize("name", sorted(SCRIPTS.keys() - {TOO_DEEP}))
def test_a_script_does_the_same_with_the_real_runtime(folder: Path, name: str) -> None:
    (folder / "script.py").write_bytes(SCRIPTS[name])
    command = [sys.executable, "script.py"]
    plain = run_plain(command, folder, stdin="one\ntwo\nend\n", env=HASH_SEED)
    shimmed = run_with_shim(command, folder, stdin="one\ntwo\nend\n", env=HASH_SEED, inert=False)
    assert shimmed == plain
    assert type(shimmed.reports[0]).__name__ == "Hello"


@pytest.mark.parametrize("name", ["exception", "exit_text", "interrupted", "closed_stdout", "atexit"])
def test_both_streams_together_come_in_the_same_order(folder: Path, name: str) -> None:
    (folder / "script.py").write_bytes(SCRIPTS[name])
    command = ["sh", "-c", f"exec {sys.executable} script.py 2>&1"]
    assert run_with_shim(command, folder) == run_plain(command, folder)


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("normal", "None"),
        ("exit_0", "None"),
        ("exit_false", "None"),
        ("exit_3", "SystemExit(3)"),
        ("exit_text", "SystemExit('the end')"),
        ("error_in_an_iterable", "KeyError('from the generator')"),
        ("interrupt_raised", "KeyboardInterrupt('text')"),
        ("atexit_after_exit", "SystemExit(3)"),
        ("fork", "None"),
        ("empty", "None"),
    ],
)
def test_the_runtime_is_told_once_how_the_script_ended(folder: Path, name: str, ending: str) -> None:
    (folder / "script.py").write_bytes(SCRIPTS[name])
    calls = run_with_shim([sys.executable, "script.py"], folder).calls
    assert [call.split(" heads=")[0] for call in calls] == [f"finish: {ending}"]


def test_loops_were_really_watched(folder: Path) -> None:
    (folder / "script.py").write_bytes(SCRIPTS["control_flow"])
    (call,) = run_with_shim([sys.executable, "script.py"], folder).calls
    assert int(call.split("heads=")[1].split()[0]) > 20


def test_a_runtime_that_reports_before_the_traceback_would_be_noticed(folder: Path) -> None:
    (folder / "script.py").write_text("import os, atexit\natexit.register(os.write, 2, b'atexit')\nraise ValueError\n")
    shimmed = run_with_shim([sys.executable, "script.py"], folder, env={"INERT_FINISH_WRITES": "finish;"})
    assert shimmed.stderr.endswith("ValueError\nfinish;atexit")


@pytest.mark.parametrize("python", PYTHONS, ids=lambda p: "running" if p == sys.executable else Path(p).parts[-3])
def test_the_runtime_can_start_threads_when_the_script_is_done(folder: Path, python: str) -> None:
    (folder / "script.py").write_text("import atexit\natexit.register(print, 'atexit')\nprint('done')\n")
    shimmed = run_with_shim([python, "script.py"], folder, env={"INERT_FINISH_STARTS_A_THREAD": "1"})
    assert (shimmed.stdout, shimmed.stderr, shimmed.status) == ("done\nin a thread\natexit\n", "", 0)


def test_an_interrupt_while_the_others_are_not_done_ends_the_waiting(folder: Path) -> None:
    (folder / "script.py").write_text("print('done')\n")
    shimmed = run_with_shim([sys.executable, "script.py"], folder, env={"INERT_FINISH_IS_INTERRUPTED": "1"})
    assert (shimmed.stdout, shimmed.stderr, shimmed.status) == ("done\n", "", 0)


def test_what_a_script_holds_that_exits_is_freed_before_the_runtime_is_told(folder: Path) -> None:
    (folder / "script.py").write_text(
        "import os, sys\n"
        "class Loud:\n"
        "    def __del__(self): os.write(2, b'deleted;')\n"
        "def main():\n"
        "    loud = Loud()\n"
        "    sys.exit(3)\n"
        "main()\n"
    )
    shimmed = run_with_shim([sys.executable, "script.py"], folder, env={"INERT_FINISH_WRITES": "finish;"})
    assert (shimmed.stderr, shimmed.status) == ("deleted;finish;", 3)
