"""Other libraries, each installed into an environment of its own, with the torch that is raced everywhere."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

INSTALL_S = 300.0
ASK_S = 120.0


@dataclass(frozen=True)
class Peer:
    """Another library. `packages`: what pip is given. `module`: what must be importable after that."""

    name: str
    packages: tuple[str, ...]
    module: str


TORCHFT = Peer("torchft", ("torchft-nightly",), "torchft")
NVRX = Peer("nvrx", ("nvidia-resiliency-ext",), "nvidia_resiliency_ext.fault_tolerance")


class PeerUnavailable(Exception):
    """It cannot be run on this machine; the message says why."""


@dataclass(frozen=True)
class Environment:
    """An installed library. `versions`: of the packages that were asked for."""

    folder: Path
    versions: dict[str, str]

    @property
    def python(self) -> str:
        return str(self.folder / "bin" / "python")


def install(peer: Peer, folder: Path) -> Environment:
    """Install the library in `folder`, unless it is there already. Raises PeerUnavailable."""
    python = folder / "bin" / "python"
    if not python.exists():
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder)], INSTALL_S)
        _share_torch(folder)
        _run([sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", *peer.packages], INSTALL_S)
    _run([str(python), "-c", f"import {peer.module}"], ASK_S)
    ask = "import sys; from importlib.metadata import version; print(*(version(p) for p in sys.argv[1:]))"
    found = _run([str(python), "-c", ask, *peer.packages], ASK_S).split()
    return Environment(folder, dict(zip(peer.packages, found)))


def _share_torch(folder: Path) -> None:
    """Append the folder that torch is in to the environment's path: its own packages come before."""
    torch = find_spec("torch")
    if torch is None or not torch.submodule_search_locations:
        raise PeerUnavailable("torch is not installed")
    packages = Path(next(iter(torch.submodule_search_locations))).parent
    for own in folder.glob("lib/python*/site-packages"):
        (own / "torch_of_the_race.pth").write_text(f"{packages}\n", encoding="utf-8")


def _run(command: Sequence[str], limit_s: float) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise PeerUnavailable(f"{type(e).__name__}: {e}") from e
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        raise PeerUnavailable(lines[-1] if lines else f"exit code {done.returncode}")
    return done.stdout
