"""Which GPUs of a node a process in a pod was given."""

from __future__ import annotations

from collections.abc import Mapping

from torchrelay.protocol.machine.visible_gpus import selected, selections

NONE_KNOWN = ""
_NVIDIA = "NVIDIA_VISIBLE_DEVICES"
_AMD = "AMD_VISIBLE_DEVICES"
"""By which the container runtimes of both are told what to give."""


def selection_of(environ: Mapping[str, str]) -> str:
    """Return UUIDs or numbers of the node's GPUs, as the device plugin has written them; empty if the selection is not known.

    It is not known if all GPUs are named, or none because they come only as devices (CDI).
    """
    for given in (_NVIDIA, _AMD):
        if environ.get(given, "") not in ("", "all", "void", "none"):
            gpus = [part.strip() for part in environ[given].split(",") if part.strip()]
            for selection in selections(environ, amd=given == _AMD):
                gpus = [gpus[place] for place in selected(gpus, selection)]
            return ",".join(gpus)
    return NONE_KNOWN
