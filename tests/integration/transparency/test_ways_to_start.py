"""Ways to start a script, and surroundings of a start, with and without the shim."""

from __future__ import annotations

import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from support.run_script import interpreters, run_plain, run_with_shim
from support.scripts import HELPER_FILES, SCRIPTS

PYTHONS = interpreters()
SCRIPT = (
    b"import sys\nfor x in map(int, '12'):\n    print(x)\n"
    b"print(sys.argv, sys.path[0], __name__, __file__, __package__)\n"
    b"print(type(__loader__).__name__, __spec__ and (__spec__.name, __spec__.origin), __doc__, __cached__)\n"
    b"assert sys.flags.optimize, 'shown'\n"
)
COMMANDS: dict[str, tuple[list[str], str | None]] = {
    "module": (["-m", "package.inner"], "finish"),
    "package": (["-m", "package", "3"], "finish"),
    "package that raises": (["-m", "package", "raise"], "finish"),
    "module in one word": (["-umhelper"], "finish"),
    "module that is interrupted": (["-m", "package.interrupted"], "finish"),
    "module with a syntax error": (["-m", "package.broken"], None),
    "missing module": (["-m", "nowhere"], None),
    "missing module in a package": (["-m", "package.nowhere"], None),
    "module inside a module": (["-m", "helper.nowhere"], None),
    "module of the library": (["-m", "json.tool"], "finish"),
    "debugger": (["-m", "pdb", "-c", "c", "-c", "q", "s.py"], "finish"),
    "command": (["-c", "import sys\nfor x in map(int, '1x'): print(sys.argv)"], "disable"),
    "standard input": (["-"], "disable"),
    "missing file": (["nofile.py"], None),
    "folder": (["app", "argument"], "finish"),
    "folder without main": (["package/.."], None),
    "archive": (["app.zip", "argument"], "disable"),
    "compiled": (["s.pyc"], "disable"),
    "no suffix": (["s"], "finish"),
    "link": (["link.py"], "finish"),
    "other folder": (["package/../s.py"], "finish"),
    "device": (["/dev/stdin"], "disable"),
    "unbuffered": (["-u", "s.py"], "finish"),
    "optimised": (["-OO", "s.py"], "finish"),
    "warnings as errors": (["-W", "error", "w.py"], "finish"),
    "warnings of the compiler as errors": (["-W", "error", "escape.py"], None),
    "all warnings": (["-W", "always", "escape.py"], "finish"),
    "development mode": (["-X", "dev", "w.py"], "finish"),
    "isolated": (["-I", "s.py"], None),
    "no site": (["-S", "s.py"], None),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    for name, source in HELPER_FILES.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(source)
    (folder / "s.py").write_bytes(SCRIPT)
    (folder / "s").write_bytes(SCRIPT)
    (folder / "link.py").symlink_to("s.py")
    (folder / "w.py").write_bytes(SCRIPTS["warnings"])
    (folder / "escape.py").write_bytes(SCRIPTS["invalid_escape"])
    (folder / "app").mkdir()
    (folder / "app/__main__.py").write_bytes(SCRIPT)
    with zipfile.ZipFile(folder / "app.zip", "w") as archive:
        archive.writestr("__main__.py", SCRIPT)
    return folder


def remove_caches(folder: Path) -> None:
    for cache in list(folder.rglob("__pycache__")):
        shutil.rmtree(cache)


@pytest.mark.parametrize("python", PYTHONS, ids=lambda p: "running" if p == sys.executable else Path(p).parts[-3])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_start_is_what_it_is_without_the_shim(folder: Path, python: str, name: str) -> None:
    arguments, expected_call = COMMANDS[name]
    command = [python, *arguments]
    run_plain([python, "-c", "import py_compile; py_compile.compile('s.py', 's.pyc')"], folder)
    stdin = '{"a": 1}' if "json.tool" in command else "for x in map(int, '12'): print(x)\n1/0\n"
    plain = run_plain(command, folder, stdin=stdin)
    remove_caches(folder)  # a module that is compiled again warns again
    shimmed = run_with_shim(command, folder, stdin=stdin)
    assert shimmed == plain
    assert [call.split(":")[0] for call in shimmed.calls] == ([expected_call] if expected_call else [])


@pytest.mark.parametrize("cached", [False, True])
def test_compiled_files_of_imported_modules_are_read_and_written_as_without_the_shim(
    folder: Path, cached: bool
) -> None:
    (folder / "i.py").write_text("import helper, package.inner\nprint(helper.run(2), package.inner.go())\n")
    command = [sys.executable, "i.py"]

    def run(shim: bool) -> tuple[object, dict[str, bytes]]:
        remove_caches(folder)
        if cached:
            run_plain(command, folder)
        outcome = (run_with_shim if shim else run_plain)(command, folder)
        return outcome, {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*.pyc")}

    plain, shimmed = run(shim=False), run(shim=True)
    assert shimmed == plain
    assert plain[1]


@pytest.mark.parametrize("body", ["print('shadowed', __name__)", "1/0", "import no_such_module"])
def test_a_sitecustomize_that_ours_shadows_runs_as_without_us(folder: Path, body: str) -> None:
    users = folder / "users_site"
    users.mkdir()
    (users / "sitecustomize.py").write_text(body)
    (folder / "p.py").write_text(
        "import os, sys\nprint(os.environ.get('PYTHONPATH'), sys.path, 'sitecustomize' in sys.modules)\n"
    )
    command = [sys.executable, "p.py"]
    plain = run_plain(command, folder, env={"PYTHONPATH": str(users)})
    shimmed = run_with_shim(command, folder, pythonpath=str(users))
    assert shimmed == plain
    assert shimmed.calls


def test_an_agent_that_turns_the_process_away_costs_one_line(folder: Path) -> None:
    plain = run_plain([sys.executable, "s.py"], folder)
    shimmed = run_with_shim([sys.executable, "s.py"], folder, refuse=True, inert=False)
    assert (shimmed.stdout, shimmed.status) == (plain.stdout, plain.status)
    line, _, rest = shimmed.stderr.partition("\n")
    assert line.startswith("torchrelay: warning: not protecting this process: ")
    assert rest == plain.stderr


@pytest.mark.parametrize("variable", ["TORCHRELAY_ROOTS", "TORCHRELAY_TOKEN", "TORCHRELAY_INJECT", "TORCHRELAY_SOCKET"])
def test_a_broken_environment_costs_one_line(folder: Path, variable: str) -> None:
    plain = run_plain([sys.executable, "s.py"], folder)
    broken = {variable: "/nowhere" if variable != "TORCHRELAY_TOKEN" else ""}
    shimmed = run_with_shim([sys.executable, "s.py"], folder, env=broken, inert=False)
    assert (shimmed.stdout, shimmed.status) == (plain.stdout, plain.status)
    line, _, rest = shimmed.stderr.partition("\n")
    assert line.startswith("torchrelay: warning: not protecting this process: ")
    assert rest == plain.stderr


def test_without_an_agent_our_folder_on_the_path_does_nothing(folder: Path) -> None:
    plain = run_plain([sys.executable, "s.py"], folder)
    blank = dict.fromkeys(("TORCHRELAY_SOCKET", "TORCHRELAY_WORKER", "TORCHRELAY_ROOTS"))
    shimmed = run_with_shim([sys.executable, "s.py"], folder, env=blank, inert=False)
    assert shimmed == plain
    assert not shimmed.reports


def test_a_spare_waits_before_the_script_and_has_its_rank_in_the_environment(folder: Path) -> None:
    (folder / "rank.py").write_text("import os\nprint(os.environ['RANK'], 'TORCHRELAY_SPARE' in os.environ)\n")
    shimmed = run_with_shim([sys.executable, "rank.py"], folder, env={"TORCHRELAY_SPARE": "1"})
    assert (shimmed.stdout, shimmed.stderr) == ("7 False\n", "")
    assert [call.split(" heads")[0] for call in shimmed.calls] == ["park", "finish: None"]


@pytest.mark.parametrize(
    "name", ["module", "package that raises", "folder", "link", "development mode", "all warnings"]
)
def test_a_start_with_the_real_runtime_is_what_it_is_without_the_shim(folder: Path, name: str) -> None:
    command = [sys.executable, *COMMANDS[name][0]]
    plain = run_plain(command, folder)
    remove_caches(folder)
    assert run_with_shim(command, folder, inert=False) == plain
