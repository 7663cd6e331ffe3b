"""`torchrelay run` with scripts that know nothing of it, and need no torch."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cells import few
from support.cli_harness import SECRET, TIMEOUT_S, Cli, eventually
from support.ports import free_port


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with Cli(tmp_path) as used:
        yield used


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # before it is opened, or before it is read
        return False


WAITS = """
    import os, pathlib, sys, time
    pathlib.Path(f"started-{os.environ['RANK']}").write_text(str(os.getpid()))
    while not pathlib.Path("end").exists():
        time.sleep(0.02)
    sys.stdout.write(f"rank {os.environ['RANK']} saw the end\\n")  # whole, beside another rank's
"""


def started(tmp_path: Path, ranks: int) -> list[int]:
    files = [tmp_path / f"started-{r}" for r in range(ranks)]
    return eventually("ranks run", lambda: all(f.exists() and f.read_text() for f in files)) and [
        int(f.read_text()) for f in files
    ]


@pytest.mark.core
def test_a_script_without_torch_runs_as_under_torchrun(cli: Cli) -> None:
    script = """
        import os, sys
        keys = "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE GROUP_RANK MASTER_ADDR OMP_NUM_THREADS".split()
        sys.stdout.write(" ".join(os.environ[k] for k in keys) + f" {sys.argv[1:]}\\n")  # whole, beside another rank's
    """
    done = cli.run("run", "--nproc-per-node", "2", "SCRIPT", "--spares", "9", "--", "-m", script=script)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == [
        f"{rank} {rank} 2 2 0 127.0.0.1 1 ['--spares', '9', '--', '-m']" for rank in (0, 1)
    ]
    assert all(line.startswith("torchrelay: ") for line in done.stderr.splitlines())
    assert list(cli.state.iterdir()) == []


@pytest.mark.parametrize(
    "streams", ["2>&1 | true", "> /dev/full 2>&1", "<&- >&- 2>&-"], ids=["no reader", "a full disk", "all closed"]
)
def test_a_run_whose_lines_cannot_be_written_goes_on_as_under_torchrun(streams: str, cli: Cli, tmp_path: Path) -> None:
    """The script writes to none of these streams: what becomes of its own lines is its own affair."""
    (tmp_path / "train.py").write_text("import pathlib\npathlib.Path('done').write_text('1')\n")
    command = f"{sys.executable} -m torchrelay.cli run --json train.py"
    done = cli.start_program("bash", "-c", f"{{ {command}; echo $? > code; }} {streams}")
    done.communicate(timeout=TIMEOUT_S)
    assert (tmp_path / "done").read_text() == "1"
    code = eventually("the command ends", lambda: (tmp_path / "code").exists() and (tmp_path / "code").read_text())
    assert code == "0\n"


@pytest.mark.core
def test_nothing_of_a_run_is_left_behind(cli: Cli) -> None:
    done = cli.run("run", "SCRIPT", script="import os; print(os.environ['TORCHELASTIC_RUN_ID'])")
    run_id = done.stdout.strip()
    assert run_id
    assert not Path(f"/dev/shm/torchrelay-{os.getuid()}-{run_id}").exists()
    assert list(cli.state.iterdir()) == []


@pytest.mark.core
@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit(2)", 2, ""),
        ("raise ValueError('a bug')", 1, "ValueError: a bug"),
        ("def f(:", 1, "SyntaxError"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 139, ""),
    ],
)
def test_a_script_that_fails_ends_the_job_with_its_exit_code(cli: Cli, script: str, code: int, said: str) -> None:
    done = cli.run("run", "SCRIPT", script=script)
    assert done.returncode == code
    assert said in done.stderr
    assert f"torchrelay: error: ended with exit code {code}" in done.stderr


def test_modules_and_programs_are_run(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text("import sys; print(__name__, __package__, sys.argv[1:])")
    assert cli.run("run", "-m", "pkg.train", "-m").stdout == "__main__ pkg ['-m']\n"
    assert cli.run("run", "--no-python", "sh", "-c", "echo rank $RANK").stdout == "rank 0\n"


def test_teed_lines_carry_the_rank(cli: Cli, tmp_path: Path) -> None:
    script = "import os; print('line of', os.environ['RANK'])"
    done = cli.run(
        "run", "--nproc-per-node", "2", "--tee", "3", "--role", "me", "--log-dir", "logs", "SCRIPT", script=script
    )
    assert sorted(done.stdout.splitlines()) == ["[me0]:line of 0", "[me1]:line of 1"]
    assert [p.read_text() for p in tmp_path.glob("logs/*/attempt_0/1/stdout.log")] == ["line of 1\n"]


def test_a_fault_that_never_fires_fails_the_command(cli: Cli) -> None:
    done = cli.run("run", "--inject", "kill:rank=0,step=5", "SCRIPT", script="print('fine')")
    assert done.returncode == 76
    assert done.stdout == "fine\n"
    assert "the fault kill:rank=0,step=5,phase=forward never fired" in done.stderr


def test_a_quiet_run_that_succeeds_says_nothing(cli: Cli) -> None:
    done = cli.run("run", "--quiet", "SCRIPT", script="print('fine')")
    assert (done.returncode, done.stdout, done.stderr) == (0, "fine\n", "")


def test_summary_and_events_can_be_read_by_programs(cli: Cli, tmp_path: Path) -> None:
    arguments = ("run", "--nproc-per-node", "2", "--json", "--events", "out/e.jsonl", "SCRIPT")
    # One write a line: print() writes text and line end apart where Python does not buffer, and two ranks share the stream.
    done = cli.run(*arguments, script="import os; os.write(1, b'fine\\n')")
    assert done.stdout.startswith("fine\nfine\n{")
    summary = json.loads(done.stdout.splitlines()[-1])
    assert (summary["exit_code"], summary["world_size"], summary["migrations"]) == (0, 2, [])
    events = [json.loads(line) for line in (tmp_path / "out" / "e.jsonl").read_text().splitlines()]
    assert events[0]["name"] == "job_started"
    assert (events[-1]["name"], events[-1]["exit_code"]) == ("job_finished", 0)


def test_a_port_in_use_is_refused_before_anything_starts(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = cli.run("run", "--master-port", str(port), "SCRIPT", script="print('ran')")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"--master-port {port} is in use" in done.stderr
    assert not cli.state.exists()


def test_a_folder_that_is_no_checkpoint_is_refused(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    done = cli.run("run", "--resume", "old", "SCRIPT", script="print('ran')")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--resume" in done.stderr
    assert list(cli.state.iterdir()) == []


@pytest.mark.slow
def test_a_job_that_was_started_with_nohup_outlives_its_terminal(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(WAITS))
    process = cli.start_program("nohup", sys.executable, "-m", "torchrelay.cli", "run", "train.py")
    started(tmp_path, 1)
    process.send_signal(signal.SIGHUP)
    (tmp_path / "end").touch()
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out) == (0, "rank 0 saw the end\n")


@pytest.mark.core
@pytest.mark.parametrize(("number", "code"), few(1, [(signal.SIGTERM, 143), (signal.SIGINT, 130)]))
def test_a_signal_to_the_command_reaches_the_ranks_once(
    cli: Cli, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    process = cli.start("run", "--nproc-per-node", "2", "--tee", "2", "SCRIPT", script=WAITS)
    pids = started(tmp_path, 2)
    process.send_signal(number)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == code
    told = ["[default0]:KeyboardInterrupt", "[default1]:KeyboardInterrupt"] if number == signal.SIGINT else []
    assert sorted(text for text in err.splitlines() if text.endswith("KeyboardInterrupt")) == told
    assert not any(map(exists, pids))


def test_a_second_ctrl_c_kills_what_will_not_end(cli: Cli, tmp_path: Path) -> None:
    notes = "import pathlib, signal\nsignal.signal(signal.SIGINT, lambda *_: pathlib.Path('told-to-end').touch())"
    process = cli.start("run", "SCRIPT", script=notes + textwrap.dedent(WAITS))
    (pid,) = started(tmp_path, 1)
    process.send_signal(signal.SIGINT)
    eventually("the first one is passed on", (tmp_path / "told-to-end").exists)  # two at once would be one
    assert exists(pid)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 130
    eventually("the rank is gone", lambda: not exists(pid))


def test_a_command_that_is_killed_takes_its_job_with_it(cli: Cli, tmp_path: Path) -> None:
    process = cli.start("run", "--nproc-per-node", "2", "SCRIPT", script=WAITS)
    pids = started(tmp_path, 2)
    process.kill()
    process.communicate(timeout=TIMEOUT_S)
    eventually("the ranks are gone", lambda: not any(map(exists, pids)))
    assert len(list(cli.state.iterdir())) == 1
    eventually("the entry is seen to be dead", lambda: cli.run("status").returncode == 2)
    assert list(cli.state.iterdir()) == []


def status_of(cli: Cli) -> dict[str, Any]:
    """What `status --json` tells; empty while no controller answers."""
    done = cli.run("status", "--json")
    found: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {}
    return found


@pytest.mark.core
def test_status_shows_the_running_job(cli: Cli, tmp_path: Path) -> None:
    process = cli.start("run", "--nproc-per-node", "2", "SCRIPT", script=WAITS)
    pids = started(tmp_path, 2)
    status = eventually("the agent has told its ranks", lambda: (now := status_of(cli)).get("ranks") and now)
    assert [(r["rank"], r["pid"]) for r in status["ranks"]] == [(0, pids[0]), (1, pids[1])]
    assert (status["world_size"], status["protection"]) == (2, "pending")
    refused = cli.run("migrate", "--rank", "0", "--reason", "a fan")
    assert refused.returncode == 2
    assert "rank 0 does not move: there is no spare to move it to" in refused.stderr
    assert "hint: torchrelay spares add 1 --run" in refused.stderr
    (tmp_path / "end").touch()
    out, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert sorted(out.splitlines()) == ["rank 0 saw the end", "rank 1 saw the end"]


def processes_of(state: Path) -> dict[str, int]:
    """Role -> pid of the command, the controller and the agent of the one job that runs."""
    files = eventually("the job is listed", lambda: list(state.glob("*/run.json")))
    pids = [process["pid"] for process in json.loads(files[0].read_text())["processes"]]
    return dict(zip(("command", "controller", "agent"), pids, strict=True))


def another_controller(state: Path, than: int) -> int:
    """Its pid, once other commands are told of it."""

    def pid() -> int | None:
        now = processes_of(state)["controller"]
        return now if now != than else None

    return eventually("another controller is there", pid)


@pytest.mark.core
def test_another_controller_takes_the_place_of_one_that_dies(cli: Cli, tmp_path: Path) -> None:
    process = cli.start("run", "--nproc-per-node", "2", "SCRIPT", script=WAITS)
    pids = started(tmp_path, 2)
    first = processes_of(cli.state)["controller"]
    os.kill(first, signal.SIGKILL)
    assert exists(another_controller(cli.state, first))

    def ranks() -> list[tuple[int, int]]:
        return [(r["rank"], r["pid"]) for r in status_of(cli).get("ranks", ())]

    assert eventually("the agent has found it", ranks) == [(0, pids[0]), (1, pids[1])]
    (tmp_path / "end").touch()
    out, err = process.communicate(timeout=120)
    assert sorted(out.splitlines()) == ["rank 0 saw the end", "rank 1 saw the end"]
    assert "the controller was ended by SIGKILL: training goes on, and another controller is started" in err
    assert process.returncode == 0


SHORT_LIVES_ARE_LONG = """
from torchrelay.cli.__main__ import main
from torchrelay.cli.run import leader
leader.SHORT_LIFE_S = 600.0
main()
"""
"""A controller that the test ends as soon as it can has not lived for long, however slow the machine is."""


def test_training_goes_on_when_no_controller_lives_for_long(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(WAITS))
    process = cli.start_program(sys.executable, "-c", SHORT_LIVES_ARE_LONG, "run", "--nproc-per-node", "2", "train.py")
    started(tmp_path, 2)
    pid = processes_of(cli.state)["controller"]
    for _ in range(4):
        os.kill(pid, signal.SIGKILL)
        pid = another_controller(cli.state, pid)
    os.kill(pid, signal.SIGKILL)
    (tmp_path / "end").touch()
    out, err = process.communicate(timeout=120)
    assert sorted(out.splitlines()) == ["rank 0 saw the end", "rank 1 saw the end"]
    assert "no other takes its place (5 in a row have ended within 600 s): training goes on" in err
    assert process.returncode == 0


def test_ranks_end_with_their_agent(cli: Cli, tmp_path: Path) -> None:
    process = cli.start("run", "--nproc-per-node", "2", "--max-restarts", "0", "SCRIPT", script=WAITS)
    pids = started(tmp_path, 2)
    os.kill(processes_of(cli.state)["agent"], signal.SIGKILL)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert "the agent was ended by SIGKILL" in err
    eventually("the kernel has ended them", lambda: not any(map(exists, pids)))


@pytest.mark.core
def test_two_machines_make_one_job(cli: Cli) -> None:
    controller, master = free_port(), free_port()
    common = ["run", "--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(master)]
    secret = {"TORCHRELAY_SECRET": SECRET}
    script = 'import os; print(f\'rank {os.environ["RANK"]} of {os.environ["WORLD_SIZE"]}\')'
    first = cli.start(*common, "--controller-port", str(controller), "SCRIPT", script=script, **secret)
    second = cli.start(
        *common, "--node-rank", "1", "--controller", f"127.0.0.1:{controller}", "SCRIPT", script=script, **secret
    )
    outputs = [process.communicate(timeout=TIMEOUT_S)[0] for process in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert outputs == ["rank 0 of 2\n", "rank 1 of 2\n"]


def test_every_line_of_command_controller_and_agent_is_json_with_one_id(cli: Cli) -> None:
    words = ["run", "--log-format", "json", "--json", "--nproc-per-node", "2", "--spares", "1", "SCRIPT"]
    run = cli.start(*words, script="import sys; sys.stdout.write('of the script\\n')", TORCHRELAY_LOG_LEVEL="debug")
    out, err = run.communicate(timeout=TIMEOUT_S)
    assert run.returncode == 0, err
    lines = [json.loads(line) for line in err.splitlines()]
    *of_the_script, summary = out.splitlines()
    assert of_the_script == ["of the script"] * 2
    assert {line["run"] for line in lines} == {json.loads(summary)["run_id"]}
    assert {line["part"] for line in lines} == {"command", "controller", "agent"}
    assert all(line["level"] in ("debug", "info", "warning", "error") and line["text"] for line in lines)
