"""What a training container's command says of its launcher."""

from __future__ import annotations

import re

from torchrelay.webhook.injection.target import Container

_OPTION = re.compile(r"--nproc[-_]per[-_]node[=\s]+(\S+)")
_VIRTUAL = re.compile(r"--virtual[-_]local[-_]rank\b")


def processes_note(container: Container) -> str:
    """Return a note if the launcher starts several training processes in a way that leaves them unprotected; "" otherwise."""
    command = " ".join([*(container.get("command") or ()), *(container.get("args") or ())])
    variables = {e["name"]: e.get("value") or "" for e in container.get("env") or ()}
    found = _OPTION.search(command)
    count = found.group(1).strip("\"'") if found else variables.get("PET_NPROC_PER_NODE", "")
    virtual = bool(_VIRTUAL.search(command)) or variables.get("PET_VIRTUAL_LOCAL_RANK") == "1"
    if not virtual or count in ("", "1"):
        return ""
    return (
        f"its launcher starts {count} training processes for each pod and gives all of them local rank 0 (--virtual-local-rank): "
        "if there is more than one, none is protected, since a spare has to be on the device of the rank that it replaces"
    )
