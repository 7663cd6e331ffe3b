"""What a training container's command says of its launcher."""

from __future__ import annotations

import re

from torchrelay.webhook.target import Container

_OPTION = re.compile(r"--nproc[-_]per[-_]node[=\s]+(\S+)")
_VARIABLE = "PET_NPROC_PER_NODE"


def processes_note(container: Container) -> str:
    """A note where a launcher is to start more than one training process in the pod, or as many as there are devices."""
    command = " ".join([*(container.get("command") or ()), *(container.get("args") or ())])
    found = _OPTION.search(command)
    variable = next((e.get("value") or "" for e in container.get("env") or () if e["name"] == _VARIABLE), "")
    count = found.group(1).strip("\"'") if found else variable
    if count in ("", "1"):
        return ""
    return (
        f"its launcher starts {count} training processes for each pod, and torchrelay protects one for each pod: if there is more "
        "than one, none is protected; make it --nproc-per-node 1, with as many more pods"
    )
