"""`kubectl torchrelay dashboard`, with an API server over HTTP in this process and a kubectl that does as it is told."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.http_api import HttpApi
from support.ports import free_port
from support.stand_in_kubectl import SERVES, Kubectl, leads

from torchrelay.cli.cluster import port_forward as module
from torchrelay.cli.cluster.api import Cluster
from torchrelay.cli.cluster.port_forward import show_dashboard
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.kube import kube_names as kube


async def until(holds: Any) -> None:
    for _ in range(6000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not come within 60 s")


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: HttpApi, port: int = 0, test: Any = None) -> int:
    async def shown() -> int:
        async with api.served(tmp_path) as config:
            monkeypatch.setenv("KUBECONFIG", str(config))
            async with Cluster(kube.SYSTEM_NAMESPACE) as cluster:
                task = asyncio.ensure_future(show_dashboard(cluster, port, ""))
                try:
                    if test is not None:
                        await test()
                        os.kill(os.getpid(), signal.SIGINT)
                    return await asyncio.wait_for(task, 60)
                finally:
                    task.cancel()
                    await asyncio.wait([task])

    return asyncio.run(shown())


def is_gone(port: int) -> bool:
    with socket.socket() as trying:
        return bool(trying.connect_ex(("127.0.0.1", port)))


def test_the_port_leads_to_the_pod_that_has_the_lease_until_ctrl_c(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api, kubectl = HttpApi(), Kubectl(tmp_path, monkeypatch, SERVES)
    leads(api, "c-1")

    told = ""

    def heard() -> bool:
        nonlocal told
        told += capsys.readouterr().err
        return "c-1 leads" in told

    async def test() -> None:
        await until(heard)

    assert run(tmp_path, monkeypatch, api, test=test) == 0
    ((pod, port),) = kubectl.forwarded()
    said = re.search(r"the dashboard is at http://127.0.0.1:(\d+)/", told)
    assert pod == "pod/c-1"
    assert said is not None
    assert is_gone(port)
    assert is_gone(int(said[1]))


async def served_by(port: int, pod: str) -> None:
    """The page at `port` of this machine comes from `pod`."""
    async with httpx2.AsyncClient(trust_env=False) as client:

        async def is_served() -> bool:
            with contextlib.suppress(httpx2.HTTPError):
                return (await client.get(f"http://127.0.0.1:{port}/")).json() == pod
            return False

        for _ in range(6000):
            if await is_served():
                return
            await asyncio.sleep(0.01)
    raise AssertionError(f"{pod} did not serve within 60 s")


def test_when_another_one_leads_the_same_port_leads_to_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    api, kubectl, port = HttpApi(), Kubectl(tmp_path, monkeypatch, SERVES), free_port()
    leads(api, "c-1")

    async def test() -> None:
        await served_by(port, "pod/c-1")
        leads(api, "c-2")
        await served_by(port, "pod/c-2")

    assert run(tmp_path, monkeypatch, api, port, test) == 0
    assert [pod for pod, _ in kubectl.forwarded()] == ["pod/c-1", "pod/c-2"]


def test_a_way_that_is_cut_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.05)
    ends_once = SERVES.replace(
        "server.serve_forever()", "import os\nfor _ in range(1 if first else 10**9): server.handle_request()"
    )
    ends_once = ends_once.replace(
        "import http.server, sys", "import http.server, os, sys\nfirst = not os.path.exists(__file__ + '.log')"
    )
    api, kubectl = HttpApi(), Kubectl(tmp_path, monkeypatch, ends_once)
    leads(api, "c-1")

    async def test() -> None:
        await until(lambda: len(kubectl.forwarded()) == 2)

    assert run(tmp_path, monkeypatch, api, test=test) == 0
    assert [pod for pod, _ in kubectl.forwarded()] == ["pod/c-1", "pod/c-1"]


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        (
            'error: pods "c-1" is forbidden: User "me" cannot create',
            "kubectl auth can-i create pods --subresource=portforward -n",
        ),
        ('Error from server (NotFound): pods "c-1" not found', "kubectl get pod c-1 -n torchrelay-system"),
    ],
)
def test_what_kubectl_refuses_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, hint: str
) -> None:
    api = HttpApi()
    leads(api, "c-1")
    Kubectl(tmp_path, monkeypatch, f"import sys; sys.exit({said!r})")
    with pytest.raises(UserError) as refused:
        run(tmp_path, monkeypatch, api)
    assert said in str(refused.value)
    assert f"hint: {hint}" in str(refused.value)


def test_a_port_that_is_taken_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = HttpApi()
    leads(api, "c-1")
    Kubectl(tmp_path, monkeypatch, SERVES)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"--port {port}: .*\nhint: --port 0 takes a free one"):
            run(tmp_path, monkeypatch, api, port)


def test_a_controller_without_a_dashboard_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = HttpApi()
    leads(api, "c-1")
    body = f'import signal; print("Forwarding from 127.0.0.1:{free_port()} -> {kube.DASHBOARD_PORT}", flush=True); signal.pause()'
    Kubectl(tmp_path, monkeypatch, body)
    with pytest.raises(UserError, match=r"serves no dashboard: it is switched off \(dashboard.enabled"):
        run(tmp_path, monkeypatch, api)


def test_where_nobody_leads_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = HttpApi()
    Kubectl(tmp_path, monkeypatch, SERVES)
    with pytest.raises(
        UserError, match=r"no lease torchrelay-controller.*\nhint: kubectl get leases.coordination.k8s.io -n"
    ):
        run(tmp_path, monkeypatch, api)
    leads(api, "")
    with pytest.raises(UserError, match="no controller leads in namespace torchrelay-system"):
        run(tmp_path, monkeypatch, api)


def test_without_kubectl_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "which", lambda _: None)
    with pytest.raises(UserError, match="kubectl is not on PATH"):
        run(tmp_path, monkeypatch, HttpApi())
