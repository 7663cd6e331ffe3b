"""Which of a machine's GPUs a process sees, by the variables of its environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

CUDA = "CUDA_VISIBLE_DEVICES"
HIP = "HIP_VISIBLE_DEVICES"
ROCR = "ROCR_VISIBLE_DEVICES"
VARIABLES = (CUDA, HIP, ROCR)


def selections(environ: Mapping[str, str], *, amd: bool) -> tuple[str, ...]:
    """Return the variables' choices among the GPUs, in order: each chooses among what the one before it has left.

    On AMD the lower runtime has its own variable. The upper one uses CUDA's variable if its own is not set.
    """
    names = (ROCR, HIP if HIP in environ else CUDA) if amd else (CUDA,)
    return tuple(environ[name] for name in names if name in environ)


def selected(names: Sequence[str], selection: str) -> list[int]:
    """Return the places of the chosen names, in the order of the choice. It chooses by number or by how a name begins.

    The choice ends at its first entry that names nothing, as CUDA's does.
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
