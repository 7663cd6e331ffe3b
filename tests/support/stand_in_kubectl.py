"""A kubectl that leads a port to a page of its own, on PATH instead of the real one."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from support.http_api import HttpApi
from torchrelay.protocol.kube import kube_names as kube

SERVES = """
import http.server, sys
import json
PAGES = None
line, = [a for a in sys.argv if a.startswith("pod/")]
here, there = sys.argv[-1].split(":")
class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        said = PAGES.get(self.path) if PAGES is not None else line
        self.send_response(200 if said is not None else 404); self.end_headers(); self.wfile.write(json.dumps(said).encode())
    def log_message(self, *a): pass
server = http.server.HTTPServer(("127.0.0.1", int(here or 0)), Page)
open(__file__ + ".log", "a").write(f"{line} {server.server_address[1]}\\n")
print(f"Forwarding from 127.0.0.1:{server.server_address[1]} -> {there}", flush=True)
server.serve_forever()
"""


def serving(pages: dict[str, Any]) -> str:
    """Return its program, which answers these paths with these values, and no other."""
    return SERVES.replace("PAGES = None", f"PAGES = json.loads({json.dumps(json.dumps(pages))})")


class Kubectl:
    """On PATH instead of the real one."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
        self.path = folder / "kubectl"
        self.path.write_text(f"#!{sys.executable}\n{body}")
        self.path.chmod(0o755)
        monkeypatch.setenv("PATH", str(folder), prepend=":")

    def forwarded(self) -> list[tuple[str, int]]:
        """To which pods, from which ports, one after the other."""
        log = Path(f"{self.path}.log")
        lines = log.read_text().splitlines() if log.exists() else []
        return [(line.split()[0], int(line.split()[1])) for line in lines]


def leads(api: HttpApi, pod: str) -> None:
    meta = {"name": kube.CONTROLLER_LEASE, "namespace": kube.SYSTEM_NAMESPACE}
    api.put("leases", {"metadata": meta, "spec": {"holderIdentity": pod}})
