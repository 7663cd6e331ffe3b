"""What is found before anything starts, and what is noticed when it changes while a job runs."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.cli_harness import SECRET, TIMEOUT_S, Cli, eventually
from support.ports import free_port

from torchrelay.cli.preflight.finding import FindingMark

TRAINS = """
    import os, pathlib, time, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def wait_until(says):
        # One of the ranks: the other one waits for it in the next step.
        end = time.monotonic() + 60
        while dist.get_rank() == 0 and not says(levels()) and time.monotonic() < end:
            time.sleep(0.05)

    def levels():
        lines = pathlib.Path(os.environ["EVENTS"]).read_text().splitlines()
        return [line for line in lines if '"name":"protection"' in line.replace(": ", ":")]

    for step in range(40):
        loss = model(torch.randn(4, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(0.02)
        if step in (20, 30) and dist.get_rank() == 0:
            exec(os.environ[f"AT_{step}"])
    dist.destroy_process_group()
"""


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with Cli(tmp_path) as used:
        yield used


def _can_mount() -> bool:
    return subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0


needs_mount = pytest.mark.skipif(not _can_mount(), reason="a file system of its own takes the right to mount one")


def with_shared_memory(cli: Cli, size: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    """`torchrelay` where /dev/shm has that size, for it and its processes alone."""
    inside = f'mount -t tmpfs -o size={size} tmpfs /dev/shm && exec "$@"'
    (cli.folder / "wrapped").write_text(
        f"#!/bin/sh\nexec unshare -m sh -c '{inside}' -- {sys.executable} -m torchrelay.cli \"$@\"\n"
    )
    (cli.folder / "wrapped").chmod(0o755)
    return cli.start_program(str(cli.folder / "wrapped"), *arguments, **environment)


def levels(cli: Cli) -> list[tuple[str, str]]:
    events = [json.loads(line) for line in (cli.folder / "events.jsonl").read_text().splitlines()]
    return [(e["level"], e["reason"]) for e in events if e["name"] == "protection"]


@pytest.mark.core
def test_a_folder_for_checkpoints_that_cannot_be_written_is_refused_before_anything_starts(cli: Cli) -> None:
    done = cli.run("run", "--jit-dir", "/proc/x", "SCRIPT", script="print('started')")
    assert done.returncode == 2
    assert "--jit-dir /proc/x: nothing can be written into /proc" in done.stderr
    assert "give another folder" in done.stderr
    assert "started" not in done.stdout
    assert not cli.state.exists()


@needs_mount
def test_shared_memory_without_room_is_refused_with_its_path_what_is_needed_and_what_to_do(cli: Cli) -> None:
    (cli.folder / "train.py").write_text("print('started')")
    process = with_shared_memory(cli, "1m", "run", "--nproc-per-node=2", "--spares=1", "train.py")
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, out) == (2, "")
    assert "/dev/shm has 1.0 MiB of 1.0 MiB free, and the journals of 3 processes need 3.0 MiB" in err
    assert "--shm-size" in err


@needs_mount
def test_shared_memory_that_fills_up_ends_protection_before_a_loss_needs_it_and_brings_it_back(cli: Cli) -> None:
    (cli.folder / "train.py").write_text(TRAINS.replace("\n    ", "\n").strip())
    fill = "room, fd = os.statvfs('/dev/shm'), os.open('/dev/shm/filled', os.O_CREAT | os.O_WRONLY); "
    fill += "os.posix_fallocate(fd, 0, room.f_bavail * room.f_frsize); os.close(fd); "
    options = ["--nproc-per-node=2", "--spares=1", "--events=events.jsonl"]
    process = with_shared_memory(
        cli,
        "64m",
        *("run", *options, "train.py"),
        EVENTS=str(cli.folder / "events.jsonl"),
        AT_20=fill + "wait_until(lambda levels: 'no room for its journals' in levels[-1])",
        AT_30="os.unlink('/dev/shm/filled'); wait_until(lambda levels: 'no room' not in levels[-1])",
    )
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    told = levels(cli)
    (lost,) = [at for at, (_, reason) in enumerate(told) if "no room for its journals" in reason]
    assert [level for level, _ in told[lost - 1 : lost + 2]] == ["protected", "unprotected", "protected"]
    assert "/dev/shm/torchrelay-" in told[lost][1]
    assert "not protected: no process could take over a rank: there is no room for its journals" in err


def test_a_folder_for_checkpoints_that_is_gone_lowers_protection_with_the_reason(cli: Cli) -> None:
    process = cli.start(
        *("run", "--nproc-per-node=2", "--spares=1", "--events=events.jsonl", "--jit-dir=jit", "SCRIPT"),
        script=TRAINS,
        EVENTS=str(cli.folder / "events.jsonl"),
        AT_20="pathlib.Path('jit').touch(); wait_until(lambda levels: 'nothing can be saved' in levels[-1])",
        AT_30="os.unlink('jit'); wait_until(lambda levels: 'nothing can be saved' not in levels[-1])",
    )
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    told = levels(cli)
    (lost,) = [at for at, (_, reason) in enumerate(told) if "nothing can be saved" in reason]
    assert [level for level, _ in told[lost - 1 : lost + 2]] == ["protected", "partly", "protected"]
    assert told[lost][1].endswith(f"{cli.folder}/jit: {cli.folder}/jit is no folder")


def on_two_machines(cli: Cli, scripts: tuple[Path, Path], *options: tuple[str, ...]) -> list[tuple[int, str]]:
    """Exit code and what was said on each."""
    controller, master = free_port(), free_port()
    common = ["run", "--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={master}"]
    own = options or ((), ())
    first = cli.start(*common, f"--controller-port={controller}", *own[0], str(scripts[0]), TORCHRELAY_SECRET=SECRET)
    joined = ["--node-rank=1", f"--controller=127.0.0.1:{controller}", *own[1]]
    second = cli.start(*common, *joined, str(scripts[1]), TORCHRELAY_SECRET=SECRET)
    said = [process.communicate(timeout=TIMEOUT_S)[1] for process in (first, second)]
    return [(first.returncode, said[0]), (second.returncode, said[1])]


@pytest.mark.core
def test_machines_whose_scripts_are_elsewhere_are_refused_with_both_paths(cli: Cli) -> None:
    scripts = cli.folder / "src" / "train.py", cli.folder / "code" / "train.py"
    for script in scripts:
        script.parent.mkdir()
        script.write_text("import time; time.sleep(60)")
    for code, said in on_two_machines(cli, scripts):
        assert code == 2, said
        assert f"runs {scripts[0]}" in said
        assert f"runs {scripts[1]}" in said


def test_a_folder_for_checkpoints_that_machines_do_not_share_is_refused_with_both_paths(cli: Cli) -> None:
    script = cli.folder / "train.py"
    script.write_text("import time; time.sleep(60)")
    folders = cli.folder / "jit-0", cli.folder / "jit-1"
    for code, said in on_two_machines(cli, (script, script), *((f"--jit-dir={folder}",) for folder in folders)):
        assert code == 2, said
        assert f"{folders[0]} on n0 and {folders[1]} on n1 are not the same folder" in said
    assert [path for folder in folders if folder.exists() for path in folder.iterdir()] == []


def test_machines_with_other_faults_are_refused(cli: Cli) -> None:
    script = cli.folder / "train.py"
    script.write_text("import time; time.sleep(60)")
    fault = ("--inject=kill:rank=1,step=3",)
    for code, said in on_two_machines(cli, (script, script), fault, ()):
        assert code == 2, said
        assert "the faults of --inject differ: kill:rank=1,step=3,phase=forward on n0, none on n1" in said


def doctor(cli: Cli, *arguments: str) -> tuple[int, dict[str, Any]]:
    done = cli.run("doctor", "--json", *arguments, script="pass")
    return done.returncode, json.loads(done.stdout)


@pytest.mark.core
def test_doctor_looks_at_everything_and_starts_nothing(cli: Cli) -> None:
    started = time.monotonic()
    code, told = doctor(cli, "--nproc-per-node=2", "SCRIPT", "--any", "--args")
    assert code == 0, told
    assert told["worst"] != "bad"
    assert {"torch", "shared-memory", "jit-dir", "stack-reader"} <= {c["check"] for c in told["checks"]}
    assert time.monotonic() - started < TIMEOUT_S
    assert sorted(p.name for p in cli.folder.iterdir()) == ["train.py"]


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S).close()
    except ConnectionRefusedError:
        return False
    return True


def doctors(cli: Cli, scripts: tuple[Path, ...], *own: tuple[str, ...]) -> list[tuple[int, list[dict[str, Any]], str]]:
    """Exit code, what was found about machines, and what was said on stderr, of a check on each machine.

    The first one waits for the others when they are started: an interpreter may take seconds to start on a busy machine.
    """
    controller, master = free_port(), free_port()
    started = []
    for rank, script in enumerate(scripts):
        where = f"--controller=127.0.0.1:{controller}" if rank else f"--controller-port={controller}"
        words = ["--nnodes=2", f"--node-rank={rank}", "--master-addr=127.0.0.1", f"--master-port={master}", where]
        extra = own[rank] if own else ()
        started.append(cli.start("doctor", "--json", *words, *extra, str(script), TORCHRELAY_SECRET=SECRET))
        if not rank:
            eventually("the first check listens", lambda: listens(controller))
    told = [process.communicate(timeout=TIMEOUT_S) for process in started]
    checks = [[c for c in json.loads(out)["checks"] if c["check"] == "machines"] for out, _ in told]
    return [(p.returncode, found, err) for p, found, (_, err) in zip(started, checks, told)]


def two_scripts(cli: Cli) -> tuple[Path, Path]:
    scripts = cli.folder / "train.py", cli.folder / "code" / "train.py"
    scripts[1].parent.mkdir()
    for path in scripts:
        path.write_text("pass")
    return scripts


@pytest.mark.core
def test_two_checks_meet_and_each_says_that_the_other_was_told_the_same(cli: Cli) -> None:
    script, _ = two_scripts(cli)
    for node, (code, found, err) in zip(("n1", "n0"), doctors(cli, (script, script))):
        assert (code, [c["mark"] for c in found]) == (0, ["well"]), (found, err)
        assert f"is the same here and on {node}" in found[0]["text"]
    assert not (cli.folder / "torchrelay-jit").exists()


def test_two_checks_that_meet_say_on_both_machines_which_has_what(cli: Cli) -> None:
    scripts = two_scripts(cli)
    folders = [(f"--jit-dir={cli.folder / 'a'}",), (f"--jit-dir={cli.folder / 'b'}", "--nproc-per-node=2")]
    told = doctors(cli, scripts, *folders)
    for other, own, (code, found, err) in zip((1, 0), (0, 1), told):
        assert code == 1, err
        texts = "\n".join(c["text"] for c in found)
        assert f"n{other} runs {scripts[other]}, this machine runs {scripts[own]}" in texts
        assert f"n{other} was given --nproc-per-node {1 + other}, this machine --nproc-per-node {1 + own}" in texts
        assert f"{cli.folder / 'ab'[own]} on this machine are not the same folder" in texts
        assert {c["mark"] for c in found} == {"bad"}
    assert not list(cli.folder.glob("[ab]")), "what they wrote there is gone"


def test_two_checks_of_the_same_number_are_told_so(cli: Cli) -> None:
    script, _ = two_scripts(cli)
    told = doctors(cli, (script, script), ("--wait=60s",), ("--node-rank=0", "--wait=60s"))
    for code, found, err in told:
        assert code == 1, err
        assert "two machines have come as n0: give each machine its own --node-rank" in found[0]["text"]


def test_a_check_whose_other_machine_does_not_come_says_which_and_where_it_looked(cli: Cli) -> None:
    script, _ = two_scripts(cli)
    ((code, (found,), err),) = doctors(cli, (script,), ("--wait=2s",))
    assert (code, found["mark"]) == (1, "bad"), err
    assert "n1 has not come within 2 s" in found["text"]
    assert "doctor --nnodes 2 --node-rank 1" in found["remedy"]
    assert "waiting 2 s for the checks of n1" in err
    assert sorted(p.name for p in cli.folder.iterdir()) == ["code", "train.py"]


def test_where_checks_cannot_meet_the_others_are_not_waited_for_and_it_is_said_why(cli: Cli) -> None:
    script, _ = two_scripts(cli)
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        words = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={free_port()}", f"--controller-port={port}"]
        done = cli.start("doctor", "--json", "--wait=2m", *words, str(script), TORCHRELAY_SECRET=SECRET)
        out, err = done.communicate(timeout=TIMEOUT_S)
    found = {c["check"]: c for c in json.loads(out)["checks"]}
    assert found["controller-port"]["mark"] == "bad", err
    assert found["machines"]["mark"] in ("warning", "bad")
    assert "waiting" not in err


def test_doctor_compares_a_machine_with_the_one_that_waits_and_says_so_where_nobody_does(cli: Cli) -> None:
    script, elsewhere = cli.folder / "train.py", cli.folder / "code" / "train.py"
    elsewhere.parent.mkdir()
    for path in (script, elsewhere):
        path.write_text("pass")
    controller = free_port()
    port = f"--master-port={free_port()}"
    shared = ["--nnodes=2", "--master-addr=127.0.0.1", port, f"--jit-dir={cli.folder / 'jit'}"]
    own = ["--node-rank=1", f"--controller=127.0.0.1:{controller}"]
    joins = [*shared, *own]

    def check(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
        process = cli.start("doctor", "--json", *arguments, TORCHRELAY_SECRET=SECRET)
        out, _ = process.communicate(timeout=TIMEOUT_S)
        checks = json.loads(out)["checks"]
        return process.returncode, [c for c in checks if c["check"] == "machines"]

    code, (alone,) = check("--wait=0", *joins, str(script))
    assert (code, alone["mark"]) == (0, "warning")
    assert f"no command of this job answers at 127.0.0.1:{controller}" in alone["text"]
    options = [*shared, f"--controller-port={controller}"]
    waits = cli.start("run", *options, str(script), TORCHRELAY_SECRET=SECRET)
    code, (same,) = eventually(
        "it waits", lambda: (now := check("--wait=0", *joins, str(script)))[1][0]["mark"] == "well" and now
    )
    assert "is the same here and on n0" in same["text"]
    code, (other,) = check(*joins, str(elsewhere))
    assert (code, other["mark"]) == (1, "bad")
    assert f"n0 runs {script}, this machine runs {elsewhere}" in other["text"]
    code, (unshared,) = check(*shared[:3], *own, f"--jit-dir={cli.folder / 'other'}", str(script))
    assert (code, unshared["mark"]) == (1, "bad"), unshared
    assert f"{cli.folder / 'other'} on this machine are not the same folder" in unshared["text"]
    waits.terminate()
    _, err = waits.communicate(timeout=TIMEOUT_S)
    assert "refused" not in err


def test_doctor_ends_with_1_and_says_what_to_do_where_something_is_wrong(cli: Cli) -> None:
    code, told = doctor(cli, "--jit-dir", "/proc/x", "--spares=-1", "SCRIPT")
    assert (code, told["worst"]) == (1, "bad")
    wrong = {c["check"]: c for c in told["checks"] if c["mark"] == "bad"}
    assert wrong.keys() == {"jit-dir", "command"}
    assert wrong["jit-dir"]["remedy"] == "give another folder: --jit-dir DIR"
    plain = cli.run("doctor", "--jit-dir", "/proc/x", "SCRIPT")
    assert plain.returncode == 1
    assert f"{FindingMark.BAD.sign} --jit-dir /proc/x: nothing can be written into /proc" in plain.stdout
