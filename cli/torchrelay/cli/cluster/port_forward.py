"""`kubectl torchrelay dashboard`: leads a port of this machine to the dashboard of the controller that leads."""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
from rich.console import Console

from torchrelay.cli.cluster.api import LEASES, Cluster
from torchrelay.cli.cluster.door import LOOPBACK, opened
from torchrelay.cli.display import narrate
from torchrelay.cli.display.teller import make_console
from torchrelay.protocol.errors import FatalError, UserError
from torchrelay.protocol.kube import kube_names as kube

LOOK_S = 3.0
"""Between two looks at who leads."""
READY_S = 30.0
ANSWER_S = 10.0
END_S = 5.0
NO_KUBECTL = "kubectl is not on PATH, and forwards the port\nhint: install kubectl"
_READY = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+) ->")


async def show_dashboard(cluster: Cluster, port: int, context: str) -> int:
    """Forward until a signal ends it, and return 0 then. `port`: on this machine; 0: a free one.

    Raises UserError where nobody leads, the right is missing, the port is taken, or the controller has no dashboard.
    """
    if shutil.which("kubectl") is None:
        raise UserError(NO_KUBECTL)
    forwarding = asyncio.ensure_future(_forward(cluster, port, context))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, forwarding.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await forwarding
    return 0


async def ask_dashboard(cluster: Cluster, path: str, context: str) -> Any:
    """Return the answer of the leading controller's dashboard at a path. Raises UserError like `show_dashboard`."""
    if shutil.which("kubectl") is None:
        raise UserError(NO_KUBECTL)
    leader = await _leader(cluster)
    if not leader:
        raise UserError(_nobody_leads(cluster.namespace))
    async with _forwarded(cluster.namespace, leader, context) as forwarded:
        return (await _get(forwarded.port, path, cluster.namespace)).json()


def _nobody_leads(namespace: str) -> str:
    return f"no controller leads in namespace {namespace}\nhint: kubectl get pods -n {namespace}"


async def _forward(cluster: Cluster, port: int, context: str) -> None:
    console = make_console(sys.stderr)
    told = ""
    leader = await _leader(cluster)
    if not leader:
        raise UserError(_nobody_leads(cluster.namespace))
    async with opened(port) as door:
        while True:
            try:
                async with _forwarded(cluster.namespace, leader, context) as forwarded:
                    door.target = forwarded.port
                    if not told:
                        await _get(door.port, "/api/settings", cluster.namespace)
                        _say(console, f"the dashboard is at http://{LOOPBACK}:{door.port}/ (Ctrl-C ends it)")
                    if told != leader:
                        _say(console, f"{leader} leads", "dim")
                    told = leader
                    leader = await _until_another_leads(cluster, leader, forwarded)
            except UserError as e:
                if not told:
                    raise
                if told != str(e):  # its pod is gone, and the lease is still its own
                    told = str(e)
                    _say(console, f"it is tried again: {told.splitlines()[0]}", "yellow")
                await asyncio.sleep(LOOK_S)
                with contextlib.suppress(FatalError):
                    leader = await _leader(cluster) or leader


async def _leader(cluster: Cluster) -> str:
    """Return the pod of the controller that leads; empty if nobody has the lease."""
    lease = await cluster.get(LEASES, kube.CONTROLLER_LEASE)
    return str(lease["spec"].get("holderIdentity") or "")


async def _until_another_leads(cluster: Cluster, leader: str, forwarded: _Forwarded) -> str:
    """Return the pod that leads by now: another one, or the same again where the way to it has ended."""
    ended = asyncio.ensure_future(forwarded.process.wait())
    try:
        while True:
            await asyncio.wait((ended,), timeout=LOOK_S)
            with contextlib.suppress(FatalError):  # the API server is away: it comes back, or Ctrl-C is pressed
                now = await _leader(cluster)
                if now and (now != leader or ended.done()):
                    return now
            if ended.done():
                await asyncio.sleep(LOOK_S)
    finally:
        ended.cancel()


@dataclass
class _Forwarded:
    process: asyncio.subprocess.Process
    port: int


@asynccontextmanager
async def _forwarded(namespace: str, pod: str, context: str) -> AsyncIterator[_Forwarded]:
    """Run `kubectl port-forward`, and yield once it listens. If it does not, raises UserError with what it says."""
    command = ["kubectl", *(["--context", context] if context else []), "port-forward", f"--namespace={namespace}"]
    ports = f":{kube.DASHBOARD_PORT}"  # from a free one
    process = await asyncio.create_subprocess_exec(
        *command,
        f"--address={LOOPBACK}",
        f"pod/{pod}",
        ports,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,  # Ctrl-C ends this command, which ends that one
    )
    reading: list[asyncio.Task[None]] = []
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), READY_S)
        except asyncio.TimeoutError:
            line = b""
        found = _READY.match(line)
        if found is None:
            _signal(process, signal.SIGKILL)
            said = (await process.stderr.read()).decode(errors="replace").strip()
            raise UserError(_why_not(said, namespace, pod))
        reading = [asyncio.ensure_future(_drop(s)) for s in (process.stdout, process.stderr)]
        yield _Forwarded(process, int(found[1]))
    finally:
        for task in reading:
            task.cancel()
        await _end(process)


async def _drop(stream: asyncio.StreamReader) -> None:
    """Read and drop what kubectl says of each connection."""
    while await stream.read(4096):
        pass


async def _end(process: asyncio.subprocess.Process) -> None:
    _signal(process, signal.SIGTERM)
    try:
        await asyncio.wait_for(process.wait(), END_S)
    except asyncio.TimeoutError:
        _signal(process, signal.SIGKILL)
        await process.wait()


def _signal(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself
        process.send_signal(number)


def _why_not(said: str, namespace: str, pod: str) -> str:
    if "forbidden" in said.lower():
        hint = f"kubectl auth can-i create pods --subresource=portforward -n {namespace}"
    else:
        hint = f"kubectl get pod {pod} -n {namespace}"
    return f"no port can be forwarded to {pod}: {said or 'kubectl port-forward does not begin'}\nhint: {hint}"


async def _get(port: int, path: str, namespace: str) -> httpx2.Response:
    """Return the dashboard's answer. Raises UserError if nobody answers behind the port."""
    async with httpx2.AsyncClient(timeout=ANSWER_S, trust_env=False) as client:
        try:
            return (await client.get(f"http://{LOOPBACK}:{port}{path}")).raise_for_status()
        except httpx2.HTTPError as e:
            raise UserError(
                "the controller that leads serves no dashboard: it is switched off (dashboard.enabled of the chart), or just "
                f"begins\nhint: kubectl get pods -n {namespace}"
            ) from e


def _say(console: Console, text: str, style: str = "") -> None:
    console.print(narrate.line(text, style))
