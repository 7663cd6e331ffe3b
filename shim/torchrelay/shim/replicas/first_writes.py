"""Notice tensors that training writes to, or makes, for the first time: that ranks held them alike before tells nothing of them.

They may have been alike by initialisation, and the first write may be of the rank's own data. So a rank that is lost takes such
a tensor from no other one before contents have been compared again. A write that torch does not count is not seen.
"""

from __future__ import annotations

import pickle
import weakref
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import torch

from torchrelay.shim.adapters.tensors.own_refs import OwnRef
from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.state.host_state import HostState, catalogue_numbers
from torchrelay.shim.tensors.tensor_versions import version_of, versions_of

Unproven = tuple[tuple[str, int], ...]
"""Path of a tensor, and the boundary at which it was first seen, or first seen written to."""


Kept = Callable[[], Iterable[str]]
"""Returns the paths of tensors that a wrapper keeps equal on all ranks."""


class FirstWrites:
    """Tensors that nothing has written to are held, as long as the script has them."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._quiet: dict[str, tuple[torch.Tensor, int]] = {}
        """The tensors that nothing has written to, by path, with their versions."""
        self._others: dict[str, tuple[torch.Tensor, int]] = {}
        """Those that are no parameters."""
        self._quiet_ones: list[torch.Tensor] = []
        self._quiet_versions: list[int] = []
        self._sizes: list[int] = []
        """How many tensors optimizers kept at the latest boundary."""
        self._trees: list[object] = []
        self._written_to: dict[int, weakref.ref[torch.Tensor]] = {}
        """The others that are there, by id: they are known where a model or an optimizer comes to be called otherwise."""
        self._owners: dict[str, weakref.ref[Any]] = {}
        """Models and optimizers, by what the paths of their tensors begin with."""
        self._unproven: dict[str, int] = {}
        self._next = 0
        """The boundary from which on a check is asked for again: each wait is twice as long as the one before."""
        self._wait = 1
        self._written_down = b""
        self._before: frozenset[str] | None = None
        """The tensors that nothing had written to in the process before this one; None: there was none."""
        self._asked_at = -1
        self.asks = False
        """Whether contents have to be compared at the latest boundary."""

    def at_boundary(self, state: HostState, boundary: int, kept: Kept) -> None:
        """Notice what the latest step has written."""
        is_first = not self._seen
        self._let_go(state)
        found = self._written(state) | self._new(state)
        if is_first and self._before is not None:
            self._note_written(one[0] for path, one in self._quiet.items() if path not in self._before)
            self._quiet = {path: one for path, one in self._quiet.items() if path in self._before}
        if found or len(self._quiet) != len(self._quiet_ones):
            quiet = [*self._quiet.values()]
            self._others = {p: one for p, one in self._quiet.items() if not isinstance(one[0], torch.nn.Parameter)}
            self._quiet_ones = [tensor for tensor, _ in quiet]
            self._quiet_versions = [version for _, version in quiet]
            self._written_down = zlib.compress(pickle.dumps(sorted(self._quiet.keys() - kept())))
        if found and not is_first:
            self._unproven.update(dict.fromkeys(found.difference(kept()), boundary))
        newest = max(self._unproven.values(), default=-1)
        self.asks = newest > self._asked_at and boundary >= self._next
        if self.asks:
            self._asked_at = boundary
            self._next = boundary + self._wait
            self._wait *= 2

    def take_over(self, unproven: Iterable[tuple[str, int]], quiet: bytes) -> None:
        """Go on as the lost rank would have. `unproven`, `quiet`: as in its journal."""
        self._unproven = dict(unproven)
        self._before = paths_of(quiet)

    def drop(self) -> None:
        """Forget the tensors: the rank is no longer protected."""
        self._quiet.clear()
        self._others.clear()
        self._written_to.clear()
        self._quiet_ones = []
        self._quiet_versions = []
        self._trees = []

    def unproven(self) -> Unproven:
        """Return what was first written since all ranks have compared contents for the last time."""
        return tuple(self._unproven.items())

    def quiet(self) -> bytes:
        """Return the paths of tensors that nothing has written to, for `paths_of`. What a wrapper keeps equal is left out."""
        return self._written_down

    def at_gate(self, boundary: int, kept: Kept) -> Unproven:
        """Return as `unproven`, with what the step has written before its gate. `boundary`: where the step leads to."""
        # Parameters are looked at at heads alone: a first write to one in a forward pass is rare, and there may be thousands.
        others = self._others
        written = {path for path, (tensor, version) in others.items() if version_of(tensor) != version}
        fresh = sorted(written.difference(kept())) if written else []
        return (*self.unproven(), *((path, boundary) for path in fresh))

    def compared(self) -> None:
        """Note that all ranks compare contents at the latest boundary."""
        self._unproven.clear()

    def _let_go(self, state: HostState) -> None:
        """Let go of quiet tensors that the script has no more. Another one that takes such a place later counts as new."""
        now = {f"value.{name}" for name in state.large}
        gone = {path for path in self._others if path.startswith("value.") and path not in now}
        trees: list[object] = [large for large, _ in state.tree_versions]
        if self._are_others(trees):
            models = _of_models(state)
            gone |= {path for path in self._quiet if path.startswith(device.MODEL) and path not in models}
        for path in gone:
            del self._quiet[path]
        self._seen -= gone

    def _are_others(self, trees: list[object]) -> bool:
        return len(trees) != len(self._trees) or any(a is not b for a, b in zip(trees, self._trees))

    def _written(self, state: HostState) -> set[str]:
        """Return quiet tensors that are no longer so. Another tensor in the place of one counts as written."""
        found = self._counted()
        for name, tensor in state.large.items():
            quiet = self._quiet.get(f"value.{name}")
            if quiet is not None and quiet[0] is not tensor:
                found.add(f"value.{name}")
                self._note_written([tensor])
        self._note_written(self._quiet[path][0] for path in found)
        for path in found:
            del self._quiet[path]
        return found

    def _counted(self) -> set[str]:
        """Return quiet tensors that were written to, as torch counts."""
        if versions_of(self._quiet_ones) == self._quiet_versions:
            return set()
        return {path for path, (tensor, version) in self._quiet.items() if version_of(tensor) != version}

    def _new(self, state: HostState) -> set[str]:
        """Return paths that were never there before."""
        found: dict[str, torch.Tensor] = {}
        trees: list[object] = [large for large, _ in state.tree_versions]
        are_others = self._are_others(trees)
        renamed = self._renamed(state) if are_others or self._has_other_optimizers(state) else set()
        if are_others:
            self._trees = trees
            found |= _of_models(state)
        if not self._seen.issuperset(f"value.{name}" for name in state.large):
            found |= {f"value.{name}": tensor for name, tensor in state.large.items()}
        states = (optimizer.state.values() for _, optimizer in state.optimizers)
        sizes = [sum([len(values) for values in of_one if isinstance(values, dict)]) for of_one in states]
        if sizes != self._sizes or renamed:
            self._sizes = sizes
            kept = device.optimizer_tensors(state)
            for path in [path for path in self._quiet if path.startswith("optimizer") and path not in kept]:
                del self._quiet[path]
                self._seen.discard(path)
            found |= kept
        new = {path: tensor for path, tensor in found.items() if path not in self._seen}
        self._seen |= new.keys()
        new = {path: tensor for path, tensor in new.items() if not self._is_written_to(tensor)}
        changed = {path for path in found.keys() & self._quiet.keys() if self._quiet[path][0] is not found[path]}
        self._note_written(found[path] for path in changed)
        for path in changed:
            del self._quiet[path]
        self._quiet |= {path: (tensor, version_of(tensor)) for path, tensor in new.items()}
        return new.keys() | changed

    def _has_other_optimizers(self, state: HostState) -> bool:
        known = (self._owners.get(f"optimizer{number}") for number in range(len(state.optimizers)))
        pairs = zip(known, state.optimizers)
        return any(ref is not None and ref() is not optimizer for ref, (_, optimizer) in pairs)

    def _renamed(self, state: HostState) -> set[str]:
        """Forget the paths of models and optimizers that others are called by now. Return what these paths begin with."""
        models = zip(catalogue_numbers(state.tree_versions), state.tree_versions, state.roots)
        now: dict[str, Any] = {f"{device.MODEL}{number}": root for number, (large, _), root in models if large}
        now |= {f"optimizer{number}": optimizer for number, (_, optimizer) in enumerate(state.optimizers)}
        renamed = {name for name, owner in now.items() if name in self._owners and self._owners[name]() is not owner}
        self._owners |= {name: OwnRef(owner) for name, owner in now.items()}
        self._written_to = {key: ref for key, ref in self._written_to.items() if ref() is not None}
        for path in [path for path in self._seen if path.partition(".")[0] in renamed]:
            self._seen.discard(path)
            self._quiet.pop(path, None)
        return renamed

    def _note_written(self, tensors: Iterable[torch.Tensor]) -> None:
        self._written_to |= {id(tensor): OwnRef(tensor) for tensor in tensors}

    def _is_written_to(self, tensor: torch.Tensor) -> bool:
        known = self._written_to.get(id(tensor))
        return known is not None and known() is tensor


def paths_of(quiet: bytes) -> frozenset[str]:
    return frozenset(pickle.loads(zlib.decompress(quiet))) if quiet else frozenset()


def _of_models(state: HostState) -> dict[str, torch.Tensor]:
    trees = zip(catalogue_numbers(state.tree_versions), state.tree_versions)
    return {f"{device.MODEL}{number}.{name}": tensor for number, (large, _) in trees for name, tensor in large}
