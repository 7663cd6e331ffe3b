"""One call of a collective: where its result goes, how that is taken down, put in place from a record, and put back."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.values import small
from torchrelay.shim.comm.finished import MAX_RECORDED_BYTES, FinishedCollective, LargeResults, results_of

_IN_PLACE = frozenset(
    {"all_reduce", "all_reduce_coalesced", "broadcast", "_broadcast_coalesced", "reduce"}
    | {f"ProcessGroup.{name}" for name in ("allreduce", "allreduce_coalesced", "broadcast", "reduce")}
)
_GATHERED = frozenset({"gather", "gather_object"})
"""Whoever is not their root has no result at all: once another rank has finished the call, nothing is left to do in it."""


@dataclass
class CollectiveCall:
    name: str
    group: str
    function: Callable[[], Any]
    out: Any
    objects: bool

    def tensors(self) -> list[torch.Tensor]:
        if self.objects or self.out is None:
            return []
        return _flat(self.out)

    def without_result(self) -> bool:
        return self.name in _GATHERED and self.out is None

    def inputs(self) -> list[torch.Tensor]:
        return [t.detach().clone() for t in self.tensors()] if self.name in _IN_PLACE else []

    def put_back(self, before: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for tensor, value in zip(self.tensors(), before):
                tensor.data.copy_(value)  # torch counts no write of a collective

    def take(self, *, for_others: bool = False, before: Sequence[torch.Tensor] = ()) -> FinishedCollective:
        """Return the record of this call. `for_others`, `before`: as in `results_of`."""
        if self.objects:
            data = pickle.dumps(list(self.out)) if self.out is not None else b""
            return FinishedCollective(self.name, self.group, data if len(data) <= MAX_RECORDED_BYTES else None)
        results = results_of(self.tensors(), for_others=for_others, before=before)
        return FinishedCollective(self.name, self.group, results)

    def put(self, entry: FinishedCollective) -> list[torch.Tensor]:
        """Put the recorded result in place. Return the tensors that hold it now."""
        if entry.results is None or self.without_result():
            return []
        if self.objects:
            values = pickle.loads(entry.results) if entry.results else []
            if self.out is not None:
                self.out[:] = values
            return []
        tensors = self.tensors()
        if isinstance(entry.results, LargeResults):
            entry.results.put(self.name, tensors)
            return tensors
        if len(tensors) != len(entry.results) or not all(map(small.fits, entry.results, tensors)):
            raise StateMismatchError(
                f"{self.name}: the recorded result has another shape than this call's: "
                f"{[value.shape for value in entry.results]}, {[tuple(tensor.shape) for tensor in tensors]}"
            )
        for tensor, value in zip(tensors, entry.results):
            small.put(value, tensor.data)  # torch counts no write of a collective
        return tensors


def _flat(tensors: Any) -> list[torch.Tensor]:
    """Return the tensors of a result, which may come in a list, or in a list for each group of ranks."""
    return [t for part in tensors for t in _flat(part)] if isinstance(tensors, (list, tuple)) else [tensors]


def group_name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    group = kwargs.get("group")
    if group is None:
        group = next((a for a in args if isinstance(a, dist.ProcessGroup)), None)
    if group is None:
        group = c10d._get_default_group()
    return str(c10d._world.pg_names.get(group, ""))
