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
from torchrelay.shim.capture.models.device import optimizer_tensors
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.join.late_write_guard import SettlingWatch
from torchrelay.shim.step.updates.late_writes import REBOUND, UNKNOWN
from torchrelay.shim.tensors import digest
from torchrelay.shim.tensors.tensor_versions import version_of


class Tail:
    """The tensors of a joiner in the rest of a step, and a watch on them.

    `own`: all tensors by path, with the donor's content; `late`: how often the donor has written to which of them. `gradients`: of
    the shadow step, by path. Those in `own_gradients` are this rank's own and not the mean over all ranks. `at_head`: the donor
    stands at the head of the next step, and not in the middle of this one. `carried`: this rank's own by path, with what they held
    at the step's head. What this part writes to them, the lost rank has.
    """

    def __init__(
        self,
        own: Mapping[str, torch.Tensor],
        late: Mapping[str, int],
        gradients: Mapping[str, torch.Tensor] | None = None,
        own_gradients: frozenset[str] = frozenset(),
        *,
        at_head: bool = True,
        carried: Mapping[str, torch.Tensor] = MappingProxyType({}),
    ) -> None:
        self._own, self._carried = dict(own), carried
        self._times = late
        self._at_head = at_head
        self._compilations = dynamo.compilations()
        self._content = digest.digests(self._own)
        self._versions = {path: version_of(tensor) for path, tensor in own.items()}
        sources = {**(gradients or {}), **self._own}
        times = {} if UNKNOWN.keys() & late.keys() else late
        self.watch = SettlingWatch(sources, own_gradients | late.keys(), times, comes_back=at_head)
        self.watch.__enter__()

    def leave(self) -> None:
        self.watch.__exit__(None, None, None)

    def check(self, state: HostState) -> bool:
        """Return, where the donor stands, whether its tensors have to be fetched again. `state`: what training can get at there.

        Raises StateMismatchError where the lost rank's state at that place cannot be known for sure.
        """
        self._check_writes()
        if dynamo.compilations() != self._compilations:
            raise StateMismatchError(
                "the step runs compiled code after its optimizer step, which rounds differently here"
            )
        bound = optimizer_tensors(state) if self._at_head else {}
        now = {path: bound.get(path, self._now(path, state)) for path in self._own}
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
        for path, tensor in self._carried.items():
            yield path, state.large.get(path.removeprefix("value."), tensor)

    def _now(self, path: str, state: HostState) -> torch.Tensor:
        """Return the tensor at the path.

        One that has taken the place of another is the donor's as of the next head, and not before.
        """
        own = self._own[path]
        return state.large.get(path.removeprefix("value."), own) if self._at_head else own

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
