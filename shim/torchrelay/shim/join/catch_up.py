"""The rest of a step after its optimizer step, gone through by a joiner that has the tensors of a donor further on.

Tensors that this part writes (an average of the weights) are the donor's as of the place where that one stands: they are put
back when the joiner has come there. What is read from them meanwhile is not what the lost rank read, so it must not leave the
device, before all has been written to them (settled.py). Which tensors these are is found here, by their content before and
after and by following every function, so it does not depend on torch's version counters, which writes through `.data` and
in-place collectives leave alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters import dynamo
from torchrelay.shim.capture.models.device import MODEL, NUMBERED, whole
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.join.late_write_guard import SettlingWatch
from torchrelay.shim.step.updates.late_writes import REBOUND, UNKNOWN
from torchrelay.shim.tensors import digest
from torchrelay.shim.tensors.tensor_versions import version_of


class CatchUp:
    """The tensors of a joiner in the rest of a step, and a watch on them.

    `own`: all tensors by path, with the donor's content; `late`: how often the donor has written to which of them. `gradients`: of
    the shadow step, by path. Those in `own_gradients` are this rank's own and not the mean over all ranks. `at_head`: the donor
    stands at the head of the next step, and not in the middle of this one. `replaced`: it stands there, and the next loop has bound
    the names to objects of its own, such as another model; what is here is the earlier loop's. `carried`: this rank's own by path,
    with what they held at the step's head. What this part writes to them, the lost rank has.
    """

    def __init__(
        self,
        own: Mapping[str, torch.Tensor],
        late: Mapping[str, int],
        gradients: Mapping[str, torch.Tensor] | None = None,
        own_gradients: frozenset[str] = frozenset(),
        *,
        at_head: bool = True,
        replaced: bool = False,
        carried: Mapping[str, torch.Tensor] = MappingProxyType({}),
    ) -> None:
        self._own = dict(own)
        self._carried = carried
        self._times = late
        self._at_head = at_head and not replaced
        self._replaced = replaced
        self._compilations = dynamo.compilations()
        self._content = digest.digests(self._own)
        self._versions = {path: version_of(tensor) for path, tensor in own.items()}
        sources = {**(gradients or {}), **self._own}
        times = {} if UNKNOWN.keys() & late.keys() else late
        is_through = self._at_head and not UNKNOWN.keys() & late.keys()
        self.watch = SettlingWatch(
            sources, own_gradients | late.keys(), times, comes_back=self._at_head, is_through=is_through
        )
        self.watch.__enter__()

    def leave(self) -> None:
        self.watch.__exit__(None, None, None)

    def check(self, state: HostState, named: Mapping[str, torch.Tensor] | None = None) -> bool:
        """Return, where the donor stands, whether its tensors have to be fetched again. `state`: what training can get at there.

        `named`: what its paths mean here, where that is not what they mean in `state`: in the midst of a step they are those of the
        step's head. Raises StateMismatchError where the lost rank's state at that place cannot be known for sure.
        """
        self._check_writes()
        if dynamo.compilations() != self._compilations:
            raise StateMismatchError(
                "the step runs compiled code after its optimizer step, which rounds differently here"
            )
        bound = whole(state, state.roots) if named is None else named
        if not self._replaced:
            self._check_names(bound)
        now = self._now(bound)
        content = digest.digests(now)
        changed = {path for path in self._own if content[path] != self._content[path]}
        self.watch.late(changed)
        self.watch.late_unless_back()
        self.watch.check_settled(changed)
        self.watch.check_escapes()
        fetched = set(map(id, now.values()))
        for name, tensor in self._kept(state):
            source = "" if id(tensor) in fetched else self.watch.computed_from(tensor)
            if source:
                raise StateMismatchError(
                    f"the step keeps in {name} what it computed from {source} after its optimizer step"
                )
        return bool(changed)

    def _kept(self, state: HostState) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield what the script has beside the donor's tensors, and what is this rank's own; each with its name."""
        for number, node in enumerate(state.nodes):
            if node.kind is Kind.TENSOR:
                yield state.path(number), node.obj
        for root in state.roots:
            yield from root.named_buffers()
        bound = whole(state, state.roots)
        for path, tensor in self._carried.items():
            yield path, tensor
            yield path, bound.get(path, tensor)

    def _check_names(self, bound: Mapping[str, torch.Tensor]) -> None:
        """Check that each of these tensors of models and optimizers still has its name, as far as it has one.

        Models and optimizers are numbered in the order in which variables lead to them. Where this rank alone has bound a variable,
        the donor's numbers are others from here on, and tensors of one form would be exchanged.
        """
        names: dict[int, set[str]] = {}
        for path, tensor in bound.items():
            names.setdefault(id(tensor), set()).add(path)
        for path, tensor in self._own.items():
            if path.startswith(NUMBERED) and path not in names.get(id(tensor), {path}):
                raise StateMismatchError(
                    f"{path} is called {min(names[id(tensor)])} by now: other ranks may call it otherwise"
                )

    def _now(self, bound: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Return the tensors at the paths. `bound`: what is bound there by now.

        One that has taken the place of another is the donor's as of the next head, and not before, but for those of models.
        """
        if self._replaced:
            return self._own
        return {
            path: bound.get(path, own) if self._at_head or path.startswith(MODEL) else own
            for path, own in self._own.items()
        }

    def _check_writes(self) -> None:
        """Check that donor and joiner have gone the same way, where torch counts writes."""
        if UNKNOWN.keys() & self._times.keys():
            return
        for path, tensor in self._own.items():
            times = version_of(tensor) - self._versions[path]
            expected = self._times.get(path, 0)
            if REBOUND in (expected, *self._times.values()) and path in self._times:
                continue
            if expected == 0 and self.watch.is_at_home(path):
                continue  # this rank alone has put others in their place, and has put them back
            if times != expected:
                raise StateMismatchError(
                    f"{path} was written {times} times since the optimizer step, and {expected} times by the donor"
                )
