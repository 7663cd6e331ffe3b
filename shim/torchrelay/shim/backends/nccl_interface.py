"""List what is called of torch's `ProcessGroupNCCL` and around it: the names, and how each is called.

torch promises none of this. So it is looked for before a job is protected: what is missing, or is called in another way by now, is
told by name. torch says how its own functions are called in the first lines of their documentation; where it does not, the name
alone is checked. Seen on torch 2.13.0 with the imitated GPU of tests/imitated_gpu.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

GROUP = "ProcessGroupNCCL"
OPTIONS = "ProcessGroupNCCL.Options"
CONFIG = "NCCLConfig"
C10D = "torch._C._distributed_c10d"


@dataclass(frozen=True)
class Used:
    """Name something of torch's that is used.

    `positional` and `keywords`: how it is called; None where it is not called. `without`: what is lost where torch lacks it; empty
    where a job cannot be protected then.
    """

    owner: str
    name: str
    positional: int | None = None
    keywords: tuple[str, ...] = ()
    without: str = ""


INTERFACE = (
    Used(GROUP, "__init__", 4),
    Used(GROUP, "abort", 0),
    Used(GROUP, "eager_connect_single_device", 1),
    Used(GROUP, "allreduce", 1),
    Used(GROUP, "rank", 0),
    Used(GROUP, "size", 0),
    Used(GROUP, "name", 0),
    Used(GROUP, "options"),
    Used(
        GROUP,
        "get_error",
        0,
        without="a communicator that fails though all ranks live is found by the hang watch alone",
    ),
    Used(OPTIONS, "__init__", 0),
    Used(OPTIONS, "_timeout"),
    Used(OPTIONS, "config"),
    Used(CONFIG, "blocking"),
    Used(
        C10D,
        "_dump_nccl_trace",
        0,
        ("includeCollectives", "includeStackTraces", "onlyActive"),
        without="a rank whose device waits for others is not told from one that hangs",
    ),
)

COPIED_OPTIONS = ("is_high_priority_stream", "global_ranks_in_group", "group_name")
COPIED_CONFIG = (
    "cga_cluster_size",
    "min_ctas",
    "max_ctas",
    "net_name",
    "split_share",
    "traffic_class",
    "cta_policy",
    "collnet_enable",
    "nvls_ctas",
)
"""Options that a new communicator gets from the one before. Where torch lacks one of these, a script cannot have set it."""


def library() -> str:
    """Return what the library is called here: on AMD it has another name and the same interface."""
    return "RCCL" if getattr(torch.version, "hip", None) else "NCCL"


def owners() -> dict[str, Any]:
    """Return the objects in which the names are looked for, by owner."""
    group = dist.ProcessGroupNCCL
    return {
        GROUP: group,
        OPTIONS: group.Options,
        CONFIG: type(getattr(group.Options(), "config", None)),
        C10D: _distributed_c10d,
    }


@functools.cache
def lacking_here() -> tuple[tuple[Used, str], ...]:
    """Return what this torch lacks, as `lacking` does. This torch has to have the library."""
    return tuple(lacking(owners()))


def lacking(found: Mapping[str, Any], interface: Iterable[Used] = INTERFACE) -> list[tuple[Used, str]]:
    """Return the names of `interface` that torch lacks or calls otherwise, with words for each.

    `found`: the objects by owner, as `owners` returns them.
    """
    told = []
    for used in interface:
        name = used.owner if used.name == "__init__" else f"{used.owner}.{used.name}"
        function = getattr(found[used.owner], used.name, None)
        if not hasattr(found[used.owner], used.name):
            told.append((used, name))
        elif used.positional is not None and not _can_be_called(function, used.positional, used.keywords):
            told.append((used, f"{name} called with {_words(used.positional, used.keywords)}"))
    return told


def _words(positional: int, keywords: tuple[str, ...]) -> str:
    if keywords and not positional:
        return ", ".join(keywords)
    numbers = {0: "no argument", 1: "1 argument"}.get(positional, f"{positional} arguments")
    return ", ".join((numbers, *keywords))


def _can_be_called(function: Any, positional: int, keywords: tuple[str, ...]) -> bool:
    ways = signatures(function)
    return not ways or any(way.takes(positional, keywords) for way in ways)


@dataclass(frozen=True)
class Signature:
    """Describe one way to call a function, without `self`. `required`: how many parameters have no default."""

    names: tuple[str, ...]
    required: int
    takes_more: bool = False

    def takes(self, positional: int, keywords: tuple[str, ...]) -> bool:
        if self.takes_more:
            return True
        is_known = set(keywords) <= set(self.names[positional:])
        return is_known and self.required <= positional + len(keywords) <= len(self.names)


def signatures(function: Any) -> list[Signature]:
    """Return the ways in which the function can be called; none where torch does not say."""
    function = inspect.unwrap(function)
    try:
        parameters = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
    except (TypeError, ValueError):
        return _documented(function)
    return [_of(parameters)]


def _of(parameters: list[inspect.Parameter]) -> Signature:
    many = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    single = [p for p in parameters if p.kind not in many]
    required = sum(p.default is inspect.Parameter.empty for p in single)
    return Signature(tuple(p.name for p in single), required, takes_more=len(single) < len(parameters))


def _documented(function: Callable[..., Any]) -> list[Signature]:
    """Return the signatures that pybind11 has written into the function's documentation.

    They read `name(self: Type, first: int, second: int = 1) -> None`, numbered where there are several.
    """
    name = re.escape(getattr(function, "__name__", ""))
    told = re.findall(rf"^(?:\d+\. )?{name}\((.*)\) -> ", function.__doc__ or "", re.MULTILINE)
    found = []
    for text in told:
        parts = [part for part in _apart(text) if part and not part.startswith("self")]
        names = tuple(re.split("[:=]", part)[0].strip() for part in parts if part not in ("*", "/"))
        required = sum("=" not in _outermost(part) for part in parts if part not in ("*", "/"))
        found.append(Signature(names, required, takes_more=any(name.startswith("*") for name in names)))
    return found


def _apart(text: str) -> list[str]:
    """Split the text at commas that are in no bracket."""
    parts = [""]
    depth = 0
    for character in text:
        depth += (character in "([{<") - (character in ")]}>")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _outermost(text: str) -> str:
    """Return the text without what is in brackets."""
    kept = ""
    depth = 0
    for character in text:
        depth += (character in "([{<") - (character in ")]}>")
        kept += character if depth == 0 else ""
    return kept
