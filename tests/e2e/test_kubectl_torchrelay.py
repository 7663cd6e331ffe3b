"""`kubectl torchrelay` as kubectl finds it, with a real API server."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.kube_install import Installation
from support.training_pods import NODES, Training

NODE = NODES[-1]
STEP = 20
FOUND = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def program(*words: str) -> list[str]:
    return ["kubectl", "torchrelay", *words]


def ask(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(program(*words), env=FOUND, capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def follow() -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """`follow(job)`: a command that tells the job's events as they come, and does not outlive the test."""
    with contextlib.ExitStack() as begun:

        def of(job: str) -> subprocess.Popen[str]:
            command = program("events", job, "--follow")
            process = subprocess.Popen(command, env=FOUND, stdout=subprocess.PIPE, text=True)
            begun.enter_context(process)
            begun.callback(process.kill)
            return process

        yield of


def on_a_terminal(*words: str, until: str, key: str) -> tuple[int, str]:
    """Exit code of a command that is ended with a key once it shows something, and all that it has shown."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("kubectl", program(*words), {**FOUND, "TERM": "xterm", "COLUMNS": "150", "LINES": "40"})
    seen, pressed = "", False
    try:
        while select.select([terminal], [], [], 60.0)[0]:
            with contextlib.suppress(OSError):  # as a terminal says that nobody writes to it any more
                if more := os.read(terminal, 65536).decode(errors="replace"):
                    seen += more
                    if until in seen and not pressed:
                        pressed = bool(os.write(terminal, key.encode()))
                    continue
            break
    finally:
        os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), seen


@pytest.mark.core
def test_a_node_is_barred_listed_and_cleared(torchrelay: Installation) -> None:
    unknown = ask("quarantine", "add", "node-of-nobody", "--reason", "a test")
    assert (unknown.returncode, "there is no node node-of-nobody" in unknown.stderr) == (2, True), unknown
    barred = ask("quarantine", "add", NODE, "--reason", "a test")
    assert barred.returncode == 0, barred.stderr
    for condition in ("InForce", "Drained"):
        torchrelay.kubectl("wait", f"--for=condition={condition}", f"quarantine/{NODE}", "--timeout=60s")
    listed = ask("quarantine", "list", "--json")
    assert [json.loads(line)["spec"]["node"] for line in listed.stdout.splitlines()] == [NODE], listed
    assert ask("quarantine", "clear", NODE).returncode == 0
    assert ask("quarantine", "list").stdout == "nothing is in quarantine\n"
    again = ask("quarantine", "clear", NODE)
    assert again.returncode == 2
    assert f"{NODE} is not in quarantine" in again.stderr


@pytest.mark.core
def test_what_happened_to_a_job_what_it_cost_and_how_it_is_ended(
    training: Training, follow: Callable[[str], subprocess.Popen[str]]
) -> None:
    training.held, training.nodes = (STEP,), NODES[: training.world_size]  # on one node alone they are partly protected
    training.start()
    training.wait_until_ready()
    name = training.name
    training.kubectl("wait", "--for=condition=Degraded=false", f"trainingjob/{name}", "--timeout=60s")
    follows = follow(name)
    stop = ask("stop", name)
    assert stop.returncode == 2
    assert f"hint: kubectl delete pods -l torchrelay.dev/job={name} -n default" in stop.stderr
    code, seen = on_a_terminal("top", until=name, key="q")
    assert (code, "steps/s" in seen, "protected" in seen) == (0, True, True), seen
    training.signal(f"{name}-1", signal.SIGKILL)
    training.let_pass(STEP)
    (migration,) = training.wait_for_migration()
    training.wait_until_succeeded()
    followed, _ = follows.communicate(timeout=60)
    print(followed)
    reasons = [line.split()[1].rstrip(":") for line in followed.splitlines()]
    assert follows.returncode == 0
    assert [r for r in reasons if r in ("Protected", "MigrationStarted", "MigrationCommitted", "JobFinished")] == [
        "Protected",
        "MigrationStarted",
        "MigrationCommitted",
        "JobFinished",
    ]
    assert "Decision" in reasons
    told = ask("events", name, "--json")
    kinds = {json.loads(line)["involvedObject"]["kind"] for line in told.stdout.splitlines()}
    assert kinds == {"TrainingJob", "Migration"}
    report = ask("report", name, "--format", "json")
    cost = json.loads(report.stdout)
    print(ask("report", name).stdout)
    assert (cost["losses_survived"], cost["moves_done"]) == (1, 0)
    assert 0 < cost["goodput"] < 1, cost
    assert cost["standstill_s"] == pytest.approx(migration["downtimeSeconds"])
    assert "has ended already" in ask("stop", name).stderr


@pytest.mark.core
def test_a_move_in_a_job_that_is_not_there_is_refused_with_what_there_is(torchrelay: Installation) -> None:
    asked = ask("migrate", "no-such-job", "--rank", "0", "--reason", "a test")
    assert asked.returncode == 2, asked
    assert "no-such-job" in asked.stderr
    assert "hint: kubectl get trainingjobs" in asked.stderr
