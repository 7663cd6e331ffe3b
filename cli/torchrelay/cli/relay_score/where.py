"""On which device the programs of the corpus compute, and over which backend their ranks communicate."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from enum import Enum

from torchrelay.protocol.errors import UserError


class ScoreBackend(str, Enum):
    """What ranks communicate over."""

    GLOO = "gloo"
    NCCL = "nccl"

    def __str__(self) -> str:
        return self.value


DEVICE_TYPES = {ScoreBackend.GLOO: "cpu", ScoreBackend.NCCL: "cuda"}
"""torch's name of the device that goes with a backend."""
LOOK_S = 120.0
"""A busy machine takes its time to import torch."""
_LOOK = """
import json, torch, torch.distributed as dist
names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(json.dumps([torch.__version__, dist.is_available() and dist.is_nccl_available(), names]))
"""


@dataclass(frozen=True)
class Where:
    """Where programs compute. `devices`: the name of each, as torch gives it; none for the CPU."""

    backend: ScoreBackend = ScoreBackend.GLOO
    devices: tuple[str, ...] = ()

    @property
    def device_type(self) -> str:
        return DEVICE_TYPES[self.backend]

    def variables(self) -> dict[str, str]:
        """Return the variables that the programs read. Only here are these names given to them."""
        return {"CORPUS_BACKEND": self.backend.value, "CORPUS_DEVICE": self.device_type}

    def in_words(self) -> str:
        """Return the text for the report, with the devices' own names: an imitated GPU is called one."""
        if not self.devices:
            return f"{self.backend} on {self.device_type}"
        names = ", ".join(f"{count} x {name}" for name, count in Counter(self.devices).items())
        return f"{self.backend} on {self.device_type} ({names})"


def look(backend: ScoreBackend) -> Where:
    """Find the devices for a backend. Raises UserError if this torch has none for it."""
    if backend is ScoreBackend.GLOO:
        return Where()
    # in a process of its own: one that has looked keeps memory of the device
    done = subprocess.run([sys.executable, "-c", _LOOK], capture_output=True, text=True, timeout=LOOK_S, check=False)
    if done.returncode != 0:
        raise UserError(f"--backend {backend}: torch could not be asked for devices: {done.stderr.strip()[-500:]}")
    return from_answer(backend, done.stdout)


def from_answer(backend: ScoreBackend, answer: str) -> Where:
    """Read torch's answer. Raises UserError if it names no device, or no NCCL. Pure."""
    version, has_nccl, names = json.loads(answer.splitlines()[-1])
    if not names:
        raise UserError(f"--backend {backend}: torch {version} finds no CUDA device here")
    if not has_nccl:
        raise UserError(f"--backend {backend}: torch {version} was built without NCCL")
    return Where(backend, tuple(names))
