"""`torchrelay run --metrics-port`: what the ports tell of a real run with a lost rank is what its events tell."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.cli_harness import TIMEOUT_S, Cli, eventually
from support.ports import free_port
from support.prometheus import SERIES

from torchrelay.protocol.names import AGENT_METRICS_OFFSET

HOST = "127.0.0.1"
WAITS = """
    import pathlib, time, torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(16, 16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(100000):
        optimizer.zero_grad()
        model(torch.randn(4, 16)).square().mean().backward()
        optimizer.step()
        time.sleep(0.02)
        stop = torch.tensor([float(pathlib.Path("seen").exists())])
        dist.all_reduce(stop)
        if stop.item():
            break
    dist.destroy_process_group()
"""
Figures = dict[tuple[str, ...], float]


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with Cli(tmp_path) as used:
        yield used


def free_pair() -> int:
    """A port that is free, as the one above it is."""
    while True:
        with ExitStack() as held:
            port = free_port()
            try:
                for each in (port, port + AGENT_METRICS_OFFSET):
                    held.enter_context(socket.create_server((HOST, each)))
            except OSError:
                continue
            return port


def text(port: int) -> str:
    try:
        with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=20) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def figures(told: str) -> Figures:
    """By name and the values of its labels, but for the job's name; all of them are in the table, or the library's."""
    found: Figures = {}
    for family in text_string_to_metric_families(told):
        for sample in family.samples:
            if sample.name.startswith("process_"):
                continue
            labels = {k: v for k, v in sample.labels.items() if k not in ("job_namespace", "job_name", "le")}
            assert set(sample.labels) - {"le"} == set(SERIES[sample.name].label_names)
            found[(sample.name, *sorted(labels.values()))] = sample.value
    return found


def test_the_ports_tell_what_the_events_tell(cli: Cli, tmp_path: Path) -> None:
    port = free_pair()
    fault = "kill:rank=1,step=12,phase=backward"
    words = ("--nproc-per-node", "2", "--spares", "1", "--metrics-port", str(port), "--inject", fault)
    process = cli.start("run", *words, "--events", "events", "SCRIPT", script=WAITS)

    def after() -> str:
        told = text(port)
        now = figures(told)
        moved = now.get(("torchrelay_job_migrations_total", "committed")) == 1
        goes_on = moved and now["torchrelay_job_steps_total",] > 12
        return told if goes_on and now["torchrelay_job_protection_level", "protected"] == 1 else ""

    told = eventually("the migration is told, and that the job is protected again", after)
    of_agent = text(port + AGENT_METRICS_OFFSET)
    (tmp_path / "seen").touch()
    _, said = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, said
    events = [json.loads(line) for line in (tmp_path / "events").read_text().splitlines()]
    (done,) = (e for e in events if e["name"] == "migration_finished")
    check(figures(told), done)
    agent = figures(of_agent)
    assert agent["torchrelay_agent_connected",] == 1
    assert agent["torchrelay_agent_room_bytes", "journals"] > 0
    lint(told + of_agent.partition("# HELP torchrelay_event_loop")[0])


def check(now: Figures, done: dict[str, Any]) -> None:
    assert now["torchrelay_migrations_total", "committed", "process", "unplanned"] == 1
    stopped_s = sum(done["downtime_s"].values())
    # Each moment counts once: a step that was told while the loss was not known yet has taken the time until then.
    counted_s = now["torchrelay_job_time_seconds_total", "stopped"]
    assert stopped_s - done["downtime_s"]["detect"] - 0.01 <= counted_s <= stopped_s + 0.01
    assert now["torchrelay_migration_downtime_seconds_sum", "unplanned"] == pytest.approx(stopped_s)
    assert now["torchrelay_migration_phase_seconds_sum", "detect", "unplanned"] == done["downtime_s"]["detect"]
    assert now["torchrelay_job_steps_redone_total",] == done["steps_redone"] == 1
    assert now["torchrelay_transferred_bytes_total",] == done["transferred_bytes"] > 0
    assert now["torchrelay_job_steps_total",] > 12
    assert now["torchrelay_job_protection_level", "protected"] == 1
    assert now["torchrelay_job_protection_cause", "covered"] == 1
    assert now["torchrelay_job_ranks_by_protection", "any-moment"] == 2
    assert 0 < now["torchrelay_job_goodput_ratio",] < 1
    assert now["torchrelay_job_step_cost_seconds", "gate"] > 0


def lint(told: str) -> None:
    """Where Prometheus' own tool is there."""
    if (promtool := shutil.which("promtool")) is not None:
        checked = subprocess.run([promtool, "check", "metrics"], input=told, capture_output=True, text=True, timeout=60)
        assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")


def test_a_port_that_is_taken_is_refused_before_anything_starts(cli: Cli) -> None:
    port = free_pair()
    agents = port + AGENT_METRICS_OFFSET
    with socket.create_server((HOST, agents)):
        done = cli.run("run", "--metrics-port", str(port), "SCRIPT", script="raise SystemExit('it was started')")
    assert done.returncode == 2
    assert f"{HOST}:{agents}, where Prometheus is to be answered, cannot be used" in done.stderr
    assert "give another --metrics-port" in done.stderr
    assert "it was started" not in done.stdout + done.stderr
