"""The dashboard in a cluster: served beside the controller that leads, and reached by `kubectl torchrelay dashboard`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.kube_install import NAMESPACE, Installation
from support.kubectl import wait_for
from support.training_pods import NODES, Training

from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.words.level import Level

STEP = 20
SAID_S = 60.0


class Dashboard:
    """`kubectl torchrelay dashboard`, and what its page is told."""

    def __init__(self) -> None:
        found = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        command = ["kubectl", "torchrelay", "dashboard", "--port", "0"]
        self.process = subprocess.Popen(command, env=found, stderr=subprocess.PIPE)
        self.said = ""
        self.address = self.wait_to_hear(r"http://127\.0\.0\.1:\d+/")

    def wait_to_hear(self, pattern: str) -> str:
        """Return what it says that fits."""
        assert self.process.stderr is not None
        until_s = time.monotonic() + SAID_S
        while (found := re.search(pattern, self.said)) is None:
            ready, _, _ = select.select([self.process.stderr], [], [], max(until_s - time.monotonic(), 0.0))
            more = os.read(self.process.stderr.fileno(), 4096).decode() if ready else ""
            assert more, self.said
            self.said += more
        return found[0]

    def sections(self, path: str) -> dict[str, Any]:
        """Return what a stream begins with; empty while nobody answers."""
        names = {"api/runs/stream": {"about", "runs"}}.get(path, {"job", "ranks", "migrations", "devices"})
        told: dict[str, Any] = {}
        with contextlib.suppress(httpx2.HTTPError), httpx2.stream("GET", self.address + path, timeout=10.0) as answer:
            name = ""
            for line in answer.iter_lines():
                if line.startswith("event: "):
                    name = line[7:]
                elif line.startswith("data: "):
                    told[name] = json.loads(line[6:])
                    if names <= told.keys():
                        return told
        return {}

    def wait_for_job(self, name: str) -> dict[str, Any]:
        """Return its card, once a lost rank would be replaced: wherever the scheduler puts its spare."""

        def found() -> dict[str, Any] | None:
            cards = self.sections("api/runs/stream").get("runs", ())
            return next((c for c in cards if c["run"] == f"default.{name}" and Level(c["level"]).promises), None)

        return wait_for(
            f"job {name} on the dashboard",
            found,
            60.0,
            lambda: str(self.sections(f"api/runs/default.{name}/stream").get("job")),
        )


@pytest.fixture
def dashboard(torchrelay: Installation) -> Iterator[Dashboard]:
    shown = Dashboard()
    try:
        yield shown
    finally:
        if shown.process.poll() is None:
            shown.process.kill()
        shown.process.communicate(timeout=20)


@pytest.mark.core
def test_a_lost_rank_is_seen_on_the_page_and_the_next_leader_serves_it(
    training: Training, torchrelay: Installation, dashboard: Dashboard
) -> None:
    training.held = (STEP,)
    training.nodes = NODES[: training.world_size]
    training.start()
    training.wait_until_ready()
    card = dashboard.wait_for_job(training.name)
    assert (card["title"], card["ranks"]) == (f"job default/{training.name}", training.world_size)
    training.signal(f"{training.name}-1", signal.SIGKILL)
    training.let_pass(STEP)
    training.wait_for_migration()
    page = f"api/runs/default.{training.name}/stream"

    def moved() -> dict[str, Any] | None:
        told = dashboard.sections(page)
        return told if told and [m["outcome"] for m in told["migrations"]] == ["committed"] else None

    told = wait_for("the migration on the page", moved, 30.0, lambda: str(dashboard.sections(page)))
    print(json.dumps(told, indent=1))
    story = httpx2.get(f"{dashboard.address}api/runs/default.{training.name}/migrations/{told['migrations'][0]['key']}")
    assert "SIGKILL" in story.text or "signal 9" in story.text, story.text
    told_before, leader = dashboard.said, torchrelay.leader()
    torchrelay.delete_pod(leader)
    dashboard.said = ""
    dashboard.wait_to_hear(rf"(?!{leader})torchrelay-controller-\S+ leads")
    about = wait_for("the next leader's page", lambda: dashboard.sections("api/runs/stream") or None, 30.0)
    print(told_before, dashboard.said, json.dumps(about, indent=1))
    dashboard.process.send_signal(signal.SIGINT)
    assert dashboard.process.wait(20) == 0
    children = subprocess.run(
        ["pgrep", "-f", f"port-forward --namespace={NAMESPACE}"], capture_output=True, check=False
    )
    assert children.stdout == b""


def test_a_job_that_begins_again_is_one_job_on_the_page(training: Training, dashboard: Dashboard) -> None:
    training.held, training.spares = (STEP,), 0
    training.asked = {"checkpoint-dir": f"{training.out}/checkpoints"}
    training.start()
    training.wait_until_ready()
    training.wait_until_held(STEP)
    training.signal(f"{training.name}-1", signal.SIGKILL)
    training.let_pass(STEP)
    page = f"api/runs/default.{training.name}/stream"

    def goes_on() -> dict[str, Any] | None:
        told = dashboard.sections(page)
        return told["job"] if told and [r for r in told["job"]["restarts"] if r["took"]] else None

    job = wait_for("a job that has begun again", goes_on, 120.0, lambda: str(dashboard.sections(page)))
    print(json.dumps(job, indent=1))
    assert len(job["restarts"]) == 1
    assert "jit-checkpoint" in job["restarts"][0]["text"]
    assert job["headline"]["text"] != "The job cannot go on in its processes"
    training.wait_until_succeeded()


@pytest.mark.core
def test_nobody_reaches_it_over_the_network(torchrelay: Installation, dashboard: Dashboard) -> None:
    pod = torchrelay.kubectl.get("pod", torchrelay.leader(), f"--namespace={NAMESPACE}")
    address = pod["status"]["podIP"]
    with socket.create_connection((address, kube.READY_PORT), timeout=10.0):
        pass  # the pod is reached as such
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((address, kube.DASHBOARD_PORT), timeout=10.0)


def test_the_role_for_it_is_enough_to_see_it_and_for_nothing_else(torchrelay: Installation) -> None:
    kubectl, viewer = torchrelay.kubectl, "--as=a-viewer"
    role = ("create", "rolebinding", "a-viewer", "--role=torchrelay-dashboard", "--user=a-viewer")
    kubectl(*role, f"--namespace={NAMESPACE}")
    try:
        for verb, what, may in (
            ("get", f"leases.coordination.k8s.io/{kube.CONTROLLER_LEASE}", True),
            ("update", f"leases.coordination.k8s.io/{kube.CONTROLLER_LEASE}", False),
            ("get", "secrets", False),
            ("create", "pods", False),
        ):
            asked = ["kubectl", "auth", "can-i", verb, what, viewer, f"--namespace={NAMESPACE}"]
            said = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False).stdout
            assert said.strip() == ("yes" if may else "no"), (verb, what)
        target = (f"pod/{torchrelay.leader()}", f":{kube.DASHBOARD_PORT}")
        command = ["kubectl", "port-forward", viewer, f"--namespace={NAMESPACE}", *target]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forwarding:
            assert forwarding.stdout is not None
            assert forwarding.stdout.readline().startswith("Forwarding from")
            forwarding.terminate()
    finally:
        kubectl("delete", "rolebinding", "a-viewer", f"--namespace={NAMESPACE}")


def test_a_replica_that_waits_says_who_leads(torchrelay: Installation) -> None:
    leader = torchrelay.leader()
    waiting = next(name for name in torchrelay.ready_pods() if name != leader)
    command = ["kubectl", "port-forward", f"--namespace={NAMESPACE}", f"pod/{waiting}", f":{kube.DASHBOARD_PORT}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forwarding:
        try:
            assert forwarding.stdout is not None
            port = re.search(r":(\d+) ->", forwarding.stdout.readline())
            assert port is not None
            shown = Dashboard.__new__(Dashboard)
            shown.address = f"http://127.0.0.1:{port[1]}/"
            about = shown.sections("api/runs/stream")
        finally:
            forwarding.terminate()
    assert about["runs"] == []
    assert f"{leader} leads" in about["about"]["note"], about
