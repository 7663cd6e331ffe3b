"""Which of a machine's GPUs a process sees, by the variables of its environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

CUDA, HIP, ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"
VARIABLES = (CUDA, HIP, ROCR)


def selections(environ: Mapping[str, str], *, amd: bool) -> tuple[str, ...]:
    """Return what chooses among the GPUs: each of these among those that the one before it has left.

    On AMD the lower runtime has its own variable, and the upper one goes by CUDA's where its own is not set.
    """
    names = (ROCR, HIP if HIP in environ else CUDA) if amd else (CUDA,)
    return tuple(environ[name] for name in names if name in environ)


def selected(names: Sequence[str], selection: str) -> list[int]:
    """Return the places of those that are chosen, by number or by how their name begins, in the order of the choice.

    It ends at its first entry that names none, as CUDA's does.
    """
    chosen: list[int] = []
    for part in filter(None, map(str.strip, selection.split(","))):
        if part.isdigit():
            found = int(part) if int(part) < len(names) else None
        else:
            found = next((place for place, name in enumerate(names) if name.startswith(part)), None)
        if found is None:
            break
        chosen.append(found)
    return chosen
