"""Commands of the docs, typed as they stand there: tests/support/documented.py says which, and why not the others."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.cli_harness import TIMEOUT_S, Cli, eventually
from support.documented import (
    BESIDE_A_JOB,
    IN_A_CLUSTER,
    IN_SENTENCES,
    LONGER,
    OF_OTHER_MACHINES,
    RUNS,
    WITHOUT_A_JOB,
)
from support.fake_controllers import DrainedController, with_controller
from support.http_api import HttpApi
from support.relay_run import LEAN
from support.stand_in_kubectl import Kubectl, leads, serving

from torchrelay.protocol.messages import ClearReply
from torchrelay.protocol.transport import convert

TRAINS = """
    import time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range({steps}):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        time.sleep(0.02)
    dist.destroy_process_group()
"""
WITHOUT_TORCH = """
import os, sys
sys.stdout.write(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}\\n")  # at once, so that no other rank's comes between
"""
JOB = """
apiVersion: batch/v1
kind: Job
metadata: {name: llama}
spec:
  template:
    metadata: {annotations: {torchrelay.dev/inject: "true"}}
    spec:
      restartPolicy: Never
      containers: [{name: train, image: train, command: [torchrun, train.py]}]
"""
SHOWS = ("torchrelay events --follow", "torchrelay dashboard")
"""They go on until Ctrl-C."""
STOPPED = 128 + signal.SIGTERM
PAST_CTRL_C = (0, 128 + signal.SIGINT)


class Reader(Cli):
    """Somebody who types what a page says, in one folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.kept = {
            "TORCHRELAY_HISTORY_DIR": str(folder / "history"),
            "TORCHRELAY_NOTIFY": "http://127.0.0.1:9/",  # nobody listens there, and no job notices
            "PYTHONPATH": os.pathsep.join([str(LEAN), str(folder)]),
            "OMP_NUM_THREADS": "1",
        }

    def types(self, command: str, script: str | None = None, **values: str) -> subprocess.Popen[str]:
        """`values`: what stands there for something that is another one here."""
        for there, here in values.items():
            command = command.replace(there, here)
        program, *words = shlex.split(command)
        assert program == "torchrelay"
        return self.start(*words, script=script, **self.kept)

    def is_told(self, command: str, code: int = 0, **values: str) -> str:
        """Return what it says, when it has ended by itself with `code`."""
        process = self.types(command, **values)
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == code, f"{command}\n{out}\n{err}"
        return out + err

    def sees(self, command: str, **values: str) -> str:
        """Return the first line of what goes on until Ctrl-C, which ends it without a traceback."""
        process = self.types(command, **values)
        stream = process.stdout if "events" in command else process.stderr
        assert stream is not None
        first = stream.readline()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode in PAST_CTRL_C, f"{command}\n{first}{out}\n{err}"
        assert "Traceback" not in err
        return first


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    with Reader(tmp_path) as used:
        yield used


@pytest.mark.slow
@pytest.mark.timeout(5 * TIMEOUT_S)
def test_what_is_typed_beside_a_job(reader: Reader) -> None:
    options = "--nproc-per-node 3 --spares 1 --name pretrain --events run.jsonl"
    job = reader.types(f"torchrelay run {options} train.py", script=TRAINS.format(steps=1_000_000))

    def status() -> dict[str, Any]:
        assert job.poll() is None, job.communicate()
        done = reader.types("torchrelay status --json")
        out, _ = done.communicate(timeout=TIMEOUT_S)
        return dict(json.loads(out)) if done.returncode == 0 else {}

    def is_ready() -> str:
        known = status()
        trains = known.get("protection") == "protected" and all(rank["boundary"] > 0 for rank in known["ranks"])
        return str(known["run_id"]) if trains and known["spares"]["ready"] else ""

    run_id = eventually("the job trains and a spare is there", is_ready)
    told: dict[str, str] = {}
    for command in BESIDE_A_JOB:
        if command.startswith("torchrelay migrate"):
            eventually("a spare is there", is_ready)
        act = reader.sees if command.startswith(SHOWS) else reader.is_told
        told[command] = act(command, **{"7e70abbe": run_id})
        if command == "torchrelay stop pretrain":
            job.communicate(timeout=TIMEOUT_S)
            assert job.returncode == STOPPED
    for command in IN_SENTENCES:
        reader.is_told(command, RUN="pretrain")
    assert (reader.folder / "run.png").stat().st_size > 0
    for command, words in SAID.items():
        assert words in told[command], f"{command}\n{told[command]}"
    assert set(SAID) == set(BESIDE_A_JOB)


SAID = {
    "torchrelay status": "n0.w2",
    "torchrelay spares list pretrain": "n0.s0",
    "torchrelay quarantine list": "nothing",
    "torchrelay events": "protected",
    "torchrelay events --json": '"name": "job_started"',
    "torchrelay events --follow": "\n",
    "torchrelay dashboard": "http://127.0.0.1:",
    "torchrelay dashboard --run 7e70abbe": "http://127.0.0.1:",
    "torchrelay migrate --rank 2 --reason 'node needs a new fan'": "rank 2 moved to n0.s0",
    "torchrelay spares add 1 pretrain": "ready",
    "torchrelay migrate pretrain --rank 2 --reason 'node needs a new fan' --json": '"committed"',
    "torchrelay explain": "m2",
    "torchrelay explain m2 pretrain": "node needs a new fan",
    "torchrelay checkpoint": "torchrelay-jit",
    "torchrelay checkpoint pretrain --reason 'before the maintenance' --json": '"saved"',
    "torchrelay history": "pretrain",
    "torchrelay history pretrain -n 100 --json": '"pretrain"',
    "torchrelay report": "restart",
    "torchrelay report pretrain --checkpoint-every 1h --restart 10m --format markdown": "# ",
    "torchrelay stop pretrain": "pretrain",
    "torchrelay dashboard pretrain": "http://127.0.0.1:",
    "torchrelay dashboard run.jsonl": "http://127.0.0.1:",
}
"""Something of what each has to say."""


class TwoMachines(DrainedController):
    """Takes out of quarantine whatever is named."""

    async def Clear(self, request: Any, context: Any) -> Any:
        return convert.to_proto(ClearReply(True, f"{request.subject} is cleared: {request.reason}"))


@pytest.mark.core
@pytest.mark.parametrize("command", OF_OTHER_MACHINES)
def test_what_is_typed_about_another_machine(command: str, reader: Reader) -> None:
    words = shlex.split(command)

    async def act(_port: int) -> int:
        told = reader.types(command)
        out, err = await asyncio.to_thread(told.communicate, timeout=TIMEOUT_S)
        assert words[2 if words[1] == "drain" else 3] in out + err, out + err
        return int(told.returncode)

    assert with_controller(TwoMachines(), reader.state, act) == 0


def prepared(folder: Path) -> None:
    (folder / "job.yaml").write_text(JOB)
    (folder / "ca.crt").write_text("an authority\n")
    (folder / "train.py").write_text(WITHOUT_TORCH)
    (folder / "package").mkdir()
    (folder / "package" / "train.py").write_text(WITHOUT_TORCH)


@pytest.mark.parametrize("command", WITHOUT_A_JOB)
def test_what_needs_no_job(command: str, reader: Reader) -> None:
    prepared(reader.folder)
    if "-f -" in command:
        done = piped(reader, command)
        assert "registry/agent:1" in done
    else:
        assert reader.is_told(command)
    for made in ("spares.png", "spares.json"):
        assert (made in command) == (reader.folder / made).exists()


def piped(reader: Reader, command: str) -> str:
    """With a file on standard input, as the page has it."""
    line = f"{shlex.quote(sys.executable)} -m torchrelay.cli {command.removeprefix('torchrelay ')} < job.yaml"
    process = reader.start_program("bash", "-c", line, **reader.kept)
    out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    return out


@pytest.mark.slow
@pytest.mark.timeout(5 * TIMEOUT_S)
@pytest.mark.parametrize("command", LONGER)
def test_what_takes_longer(command: str, reader: Reader) -> None:
    process = reader.types(command, script=TRAINS.format(steps=20))
    out, err = process.communicate(timeout=4 * TIMEOUT_S)
    assert process.returncode == 0, out + err
    if "--picture" in command:
        assert (reader.folder / "scaling.png").stat().st_size > 0
        assert json.loads((reader.folder / "scaling.json").read_text())


@pytest.mark.parametrize("command", RUNS)
def test_a_script_is_started_on_as_many_ranks_as_the_page_says(command: str, reader: Reader) -> None:
    prepared(reader.folder)
    words = shlex.split(command)
    ranks = int(words[words.index("--nproc-per-node") + 1]) if "--nproc-per-node" in words else 1
    told = reader.is_told(command)
    assert sorted(line for line in told.splitlines() if line.startswith("rank ")) == [
        f"rank {rank} of {ranks}" for rank in range(ranks)
    ]


def of_a_cluster() -> HttpApi:
    """A job of three ranks in each of two namespaces, and a node where none of them is."""
    api = HttpApi()
    ranks = [{"rank": r, "pod": f"llama-{r}", "node": f"gpu-{r}", "state": "running"} for r in range(3)]
    for namespace in ("default", "training"):
        status = {"phase": "Running", "worldSize": 3, "step": 7, "spares": 1, "sparesWarm": 1, "ranks": ranks}
        job = {"metadata": {"name": "llama", "namespace": namespace}, "spec": {}}
        api.put("trainingjobs", {**job, "status": {**status, "protection": "protected"}})
    api.put("nodes", {"metadata": {"name": "gpu-17"}})
    leads(api, "c-1")
    return api


async def moves_what_is_asked(api: HttpApi) -> None:
    """As a controller would."""
    await api.wait_until(lambda: bool(api.of("migrations").objects))
    await api.wait_for_watch("migrations")
    ((_, name),) = api.of("migrations").objects
    found = api.of("migrations").objects["default", name]
    assert found["spec"]["rank"] == 2
    api.put("migrations", {**found, "status": {"outcome": "committed", "reason": "rank 2 trains"}})


CARD = {"run": "training.llama", "job": "training/llama", "ranks": 3, "steps": 7, "goodput": "97 %"}
CARD |= {"protection": "protected", "headline": "Trains", "when": "", "over": False}
GOES_ON = ("--watch", "dashboard")


@pytest.mark.core
@pytest.mark.parametrize("command", IN_A_CLUSTER)
def test_what_is_asked_of_a_cluster(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Kubectl(tmp_path, monkeypatch, serving({"/api/settings": {}, "/api/runs": [CARD]}))
    words = shlex.split(command)[2:]
    told = asyncio.run(asked(of_a_cluster(), tmp_path, words, moves_what_is_asked if "migrate" in words else None))
    assert {"drain": "gpu-17", "migrate": "committed", "dashboard": "http://127.0.0.1:"}.get(words[0], "llama") in told


async def asked(
    api: HttpApi, folder: Path, words: Sequence[str], meanwhile: Callable[[HttpApi], Awaitable[None]] | None
) -> str:
    """Return what it says: all of it, or what comes first where it goes on until Ctrl-C."""
    async with api.served(folder) as config:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "torchrelay.cli.cluster", *words),
            env={**os.environ, "KUBECONFIG": str(config), "COLUMNS": "160"},
            cwd=folder,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        assert process.stdout is not None
        try:
            if meanwhile is not None:
                await asyncio.wait_for(meanwhile(api), TIMEOUT_S)
            told = b""
            if any(word in words for word in GOES_ON):
                while b"llama" not in told and b"http" not in told:
                    line = await asyncio.wait_for(process.stdout.readline(), TIMEOUT_S)
                    assert line, told.decode()
                    told += line
                process.send_signal(signal.SIGINT)
            told += await asyncio.wait_for(process.stdout.read(), TIMEOUT_S)
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    assert code in (PAST_CTRL_C if any(word in words for word in GOES_ON) else (0,)), told.decode()
    assert b"Traceback" not in told
    return told.decode()
