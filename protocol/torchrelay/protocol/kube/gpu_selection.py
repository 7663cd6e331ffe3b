"""Which GPUs of a node a process in a pod was given."""

from __future__ import annotations

from collections.abc import Mapping

NONE_KNOWN = ""
_GIVEN, _CHOSEN = "NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"


def selection_of(environ: Mapping[str, str]) -> str:
    """UUIDs or numbers of the node's GPUs, as the device plugin has written them; empty where that is not known: all of them are
    named, or none because they come as devices alone (CDI)."""
    given = environ.get(_GIVEN, "")
    if given in ("", "all", "void", "none"):
        return NONE_KNOWN
    gpus = [part.strip() for part in given.split(",") if part.strip()]
    chosen = environ.get(_CHOSEN)
    if chosen is None:
        return ",".join(gpus)
    numbers = [int(part) for part in chosen.split(",") if part.strip().isdigit()]
    named = [part.strip() for part in chosen.split(",") if part.strip() in gpus]
    return ",".join(named or [gpus[n] for n in numbers if n < len(gpus)])
