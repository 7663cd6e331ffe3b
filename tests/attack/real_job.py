"""A real job in pods of the cluster that is attacked: agents with certificates of their own, and ranks that train.

It moves and loses ranks all the while, strangers are at each of its ports and at the unix socket of each pod, and it has to end
bitwise as the undisturbed run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from attack.draw import Draw, Known
from attack.machine import Ports
from attack.process import Controlled
from attack.tally import Tally
from support.kube_cluster import SECRET
from support.ports import free_port
from support.relay_run import LEAN, plain
from support.training import SCRIPTS, differences

from torchrelay.agent.processes.launch import shim_folders
from torchrelay.protocol import messages as msg
from torchrelay.protocol import names
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.security.tls import Credentials
from torchrelay.protocol.transport import wire

SCRIPT, RANKS, NAMESPACE, JOB = "ddp.py", 2, "attacked", "real"
PROTECTED_S, ENDS_S, LOOK_S = 90.0, 120.0, 0.2
REFERENCE_S = 900.0
"""Time for the undisturbed run, which goes on beside all attacks."""
MOVES_LEAST = 2
"""One of them after a loss."""
SOCKET = "the unix socket of a pod"


class RealPod:
    """One pod: its agent and its training process. `rank`: NO_RANK of a spare."""

    def __init__(
        self, folder: Path, made: dict[str, str], ports: dict[str, int], script: list[str], env: dict[str, str]
    ):
        self.name, self.folder = made["name"], folder
        folder.mkdir()
        (folder / "token").write_text(f"pod {NAMESPACE} {made['name']} {made['uid']}")
        (folder / "kept").mkdir()
        authority = Credentials.from_secret(SECRET, "pod").authority.decode()
        config = {
            "namespace": NAMESPACE,
            "pod": made["name"],
            "uid": made["uid"],
            "host": "127.0.0.1",
            "controller": f"127.0.0.1:{ports['relay']}",
            "enrolment": f"127.0.0.1:{ports['enrol']}",
            "authority": authority,
            "run_folder": str(folder),
            "token_file": str(folder / "token"),
            "kept": str(folder / "kept"),
            "leave_s": 1.0,
            "end_s": 5.0,
            "restarts": False,
            "metrics_port": free_port(),
        }
        path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
        ours = {**os.environ, "PYTHONPATH": path, "GRPC_VERBOSITY": "NONE"}
        self.agent = self._start([sys.executable, "-m", "attack.real_agent", json.dumps(config)], ours)
        self.rank = self._start([sys.executable, *script], {**os.environ, **self._shim(), **env})

    def _shim(self) -> dict[str, str]:
        """As the webhook sets it."""
        site, roots = shim_folders()
        return {
            names.ENV_SOCKET: str(self.folder / "agent.sock"),
            names.ENV_WORKER: "train",
            names.ENV_TOKEN_FILE: str(self.folder / "shim-token"),
            names.ENV_JOURNAL: str(self.folder / "journal"),
            names.ENV_ROOTS: os.pathsep.join(map(str, roots)),
            names.ENV_ASK: "1",
            names.ENV_PYTHONPATH_WAS: str(LEAN),
            "PYTHONPATH": os.pathsep.join([str(site), str(LEAN)]),
        }

    def _start(self, command: list[str], environ: dict[str, str]) -> subprocess.Popen[bytes]:
        """In a folder so deep that no path that is drawn leads out of the pod's."""
        (deep := self.folder / "in" / "the" / "pod").mkdir(parents=True, exist_ok=True)
        with (self.folder / "said").open("ab") as said:
            return subprocess.Popen(command, env=environ, cwd=deep, stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    def end(self) -> None:
        for process in (self.rank, self.agent):
            process.kill()
            process.wait()

    def said(self) -> str:
        return (self.folder / "said").read_text()[-3000:]


class RealJob:
    """`async with`: it trains from the beginning on, and `end` says what has become of it."""

    def __init__(self, controlled: Controlled, folder: Path, epochs: int, draw: Draw, tally: Tally) -> None:
        self._controlled, self._folder, self._epochs, self._tally, self._draw = controlled, folder, epochs, tally, draw
        self._pods: dict[str, RealPod] = {}
        self._out, self._hurry = folder / "real-out", folder / "hurry"
        self._short = Path(tempfile.mkdtemp(prefix="pods-"))
        """For sockets: their paths may not be long."""
        self._launch = {"WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        self._launch |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        self._level = ""
        self._ports = Ports(draw, tally, lambda: self._level == "protected")
        self._watches: asyncio.Task[None] | None = None

    async def __aenter__(self) -> RealJob:
        self._out.mkdir()
        made = await self._controlled.ask("pods", job=JOB, size=RANKS, annotations={})
        for rank, pod in enumerate(made):
            self._run(pod, rank)
        self._watches = asyncio.create_task(self._watch())
        (self._folder / "real-plain").mkdir()
        arguments = (self._folder / "real-plain", SCRIPT, str(self._epochs))
        self._reference = asyncio.create_task(asyncio.to_thread(plain, *arguments, ranks=RANKS, limit_s=REFERENCE_S))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._watches is not None
        self._watches.cancel()
        await asyncio.gather(self._watches, self._reference, return_exceptions=True)
        self._ports.end()
        for pod in self._pods.values():
            pod.end()
        await self._controlled.ask("remove", job=JOB)
        shutil.rmtree(self._short)

    async def strike(self) -> None:
        """A rank is killed, and then one after the other is moved, until it is cancelled."""
        if not await self._until(lambda: self._level == "protected", PROTECTED_S):
            self._tally.fail(f"the real job was never protected: {self._told()}")
            return
        self._pods[f"{JOB}-1"].rank.send_signal(signal.SIGKILL)
        done = 0
        while True:
            if not await self._until(lambda: self._level == "protected", PROTECTED_S):
                return  # `end` says so
            if len(await self._controlled.ask("outcomes", job=JOB)) > done:
                done += 1
                await self._controlled.ask("wish", job=JOB, rank=done % RANKS)
            await asyncio.sleep(LOOK_S)

    async def end(self) -> None:
        """Let it come to its end, and compare."""
        self._hurry.touch()
        results = [self._out / f"rank-{rank}.json" for rank in range(RANKS)]
        if not await self._until(lambda: all(result.exists() for result in results), ENDS_S):
            self._tally.fail(f"the real job has not ended: {self._told()}")
            return
        outcomes = await self._controlled.ask("outcomes", job=JOB)
        if outcomes.count("committed") < MOVES_LEAST:
            self._tally.fail(f"of the real job's migrations only these were made: {outcomes}; {self._told()}")
        for text in differences(await self._reference, self._out, RANKS):
            self._tally.fail(f"the real job is not as the undisturbed one: {text}")
        for owner in ("a rank", "the agent of a pod"):
            if not self._ports.by_owner[owner]:
                self._tally.fail(f"no port of {owner} was found")
        print(f"the real job: {outcomes.count('committed')} migrations of {len(outcomes)}, bitwise", flush=True)

    def _run(self, made: dict[str, str], rank: int) -> None:
        """As the kubelet does."""
        known = {**self._launch, "RANK": str(rank)} if rank != NO_RANK else {names.ENV_SPARE: "1"}
        script = [str(SCRIPTS / SCRIPT), str(self._out), str(self._epochs)]
        environ = {"OMP_NUM_THREADS": "1", "STEP_S": "0.1", "HURRY": str(self._hurry), **known}
        pod = RealPod(self._short / made["name"], made, self._controlled.ports, script, environ)
        self._pods[pod.name] = pod
        asyncio.get_running_loop().run_in_executor(None, self._at_socket, pod)

    async def _watch(self) -> None:
        while True:
            seen = await self._controlled.ask("look", job=JOB)
            self._level = seen["status"].get("protection", "")
            for pod in seen["pods"]:
                if pod["spare"] and pod["name"] not in self._pods:
                    self._run(pod, NO_RANK)
            for name in self._pods.keys() - {pod["name"] for pod in seen["pods"]}:
                self._pods[name].end()
            owners = {p.agent.pid: "the agent of a pod" for p in self._pods.values()}
            self._ports.come_to(owners | {p.rank.pid: "a rank" for p in self._pods.values()})
            await asyncio.sleep(LOOK_S)

    def _at_socket(self, pod: RealPod) -> None:
        """Processes of the pod that are none of the job's: without its token, or that say nothing, or anything."""
        path = pod.folder / "agent.sock"
        until_s = time.monotonic() + PROTECTED_S
        while not path.exists() and time.monotonic() < until_s:
            time.sleep(0.05)  # another process makes it, and tells nobody
        hello = msg.Hello("train", "0" * 64, os.getpid(), "3.11", False, {"RANK": "0", "WORLD_SIZE": "2"})
        reports = [wire.encode(self._draw.report(Known())) for _ in range(20)]
        for data in (wire.encode(hello), b"", self._draw.garbage(), *reports, b"\0" * 9):
            self._tally.sent(SOCKET)
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(1.0)
                connection.connect(str(path))
                connection.sendall(data)
                answer = connection.recv(4096)
                self._tally.refuse(SOCKET, f"closed after {'an answer' if answer else 'no answer'}")

    async def _until(self, true: Callable[[], bool], within_s: float) -> bool:
        end_s = time.monotonic() + within_s
        while not true():
            if time.monotonic() > end_s:
                return False
            await asyncio.sleep(LOOK_S)  # other processes tell nobody what they do
        return True

    def _told(self) -> str:
        return "\n".join(f"{pod.name}: {pod.said()}" for pod in self._pods.values())
