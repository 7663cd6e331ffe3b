"""Gradients at a boundary: which of them the step that begins there would add to, so that they are part of the rank's state.

Most scripts zero theirs somewhere between an update and the first backward that adds to them, and for those nothing is kept. What
a backward was seen to add to, or an update to use, is copied at each boundary from then on, on its own device; before anything is
known, in the first steps, what is left over when the first backward begins is copied once.

That a gradient is older than the boundary is told by what it is and by torch's count of writes, in each step. Where it was written
to before it was added to, it is looked at whether that has made zeros of it; the same number of writes does so again from then on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError
from torchrelay.shim.adapters.parallel import fsdp2, wrappers
from torchrelay.shim.adapters.raw_memory.list_pointers import pointers
from torchrelay.shim.adapters.tensors.dtensor import local
from torchrelay.shim.adapters.tensors.parameter_gradients import gradients_of, put_gradient
from torchrelay.shim.capture.models import device
from torchrelay.shim.gradients.gradient_record import GradientRecord, Learned, form_of, zeros
from torchrelay.shim.gradients.noted_gradient import Fate, NotedGradient, are_zero, is_plain, versions
from torchrelay.shim.tensors import digest

if TYPE_CHECKING:
    from torchrelay.shim.capture.state.host_state import HostState

_LOOKS = 4
"""Steps in which what is left over is looked at, and copied; after these it is looked at where their number is a power of two."""


class Gradients:
    """Of the parameters of models and optimizers, by their paths in the catalogue."""

    def __init__(self) -> None:
        self._boundary = 0
        self._paths: list[str] = []
        self._parameters: list[torch.Tensor] = []
        self._named: list[object] = []
        """What they were named by."""
        self._present: list[bool] = []
        self._found: dict[str, NotedGradient] = {}
        """Those of the latest boundary, but for those that are expected to be dropped."""
        self._light: list[tuple[str, torch.Tensor]] = []
        """Path and parameter of those."""
        self._open: list[NotedGradient] = []
        """Those found that are not kept, and whose fate is not known."""
        self._kept: set[str] = set()
        self._dropped: set[str] = set()
        self._zeroed: set[str] = set()
        """What has become of them when it was seen last, by path."""
        self._zeroed_by: dict[str, int] = {}
        """Path -> after how many writes since the last gate it was seen to be zero."""
        self._learned: Learned | None = None
        """All of these, for the journal; None: something was learned since."""
        self._unproven: set[str] = set()
        """Paths of those that this process may hold otherwise than the rank that it has taken over from did."""
        self._looks = self._seen = 0
        """Steps in which something was left over, and boundaries."""
        self._within = self._begun = False
        self.record = GradientRecord()
        """For the journal of the latest boundary."""
        self._told = 0
        """How many were kept at the latest boundary that a journal was written at."""
        self.changed = False
        """Whether more gradients are part of the state at this boundary than at the one before."""
        self.copied_bytes = self.most_copied_bytes = 0
        """At the latest boundary, and at any."""

    # At the head.

    def at_boundary(self, state: HostState, boundary: int) -> None:
        """Raises UnsupportedError where gradients are kept that cannot be carried."""
        self._note(state, boundary)
        self._told = len(self._kept)

    def _note(self, state: HostState, boundary: int) -> None:
        self._learn(state)
        self.changed = len(self._kept) > self._told
        self._boundary, self._within, self._begun = boundary, False, False
        self._seen += 1
        is_same_list = self._note_parameters(state)
        gradients = gradients_of(self._parameters)
        present = [gradient is not None for gradient in gradients]
        if is_same_list and not self._found and len(self._light) == sum(present) and present == self._present:
            return  # all of them will be dropped, as ever
        self._present = present
        before, self._found, self._light = self._found, {}, []
        there: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        for path, parameter, gradient in zip(self._paths, self._parameters, gradients):
            if gradient is None or gradient.is_meta:
                continue
            if path in self._dropped and path not in self._unproven and not self._is_early():
                self._light.append((path, parameter))
            else:
                there.append((path, parameter, gradient))
        for (path, parameter, gradient), version in zip(there, versions([gradient for _, _, gradient in there])):
            noted = before.get(path)
            if noted is not None and noted.parameter is parameter and noted.there() is gradient:
                noted.at_boundary(version)
            else:
                noted = NotedGradient(path, parameter, gradient, version)
                noted.note_form(gradient)
            self._found[path] = noted
            noted.is_kept = path in self._kept
            if noted.is_kept:
                _check_plain(path, gradient)
                noted.keep(gradient)
        self._open = [gradient for gradient in self._found.values() if not gradient.is_kept]
        self.copied_bytes = sum(_size_bytes(g.content) for g in self._found.values() if g.content is not None)
        self.most_copied_bytes = max(self.most_copied_bytes, self.copied_bytes)
        self.record = self._recorded()

    def _note_parameters(self, state: HostState) -> bool:
        """Whether they are those of before."""
        lists = [large for large, _ in state.tree_versions]
        flat = [p for _, optimizer in state.optimizers for group in optimizer.param_groups for p in group["params"]]
        named = [*lists, *flat]
        if pointers(named) == pointers(self._named):
            return True
        self._named = named
        found = device.parameters(state)
        self._paths, self._parameters = list(found), list(found.values())
        return False

    def _learn(self, state: HostState) -> None:
        """From the step that is over."""
        by_fate: dict[Fate, list[str]] = {fate: [] for fate in Fate}
        for path, gradient in self._found.items():
            by_fate[gradient.fate].append(path)
        added = [path for path in by_fate[Fate.ADDED] if path not in self._kept]
        for path in added:
            _check_carried(path, state)
        zeroed = [path for path in by_fate[Fate.ZEROED] if not self._found[path].was_zero]
        known = len(self._kept), len(self._dropped), len(self._zeroed)
        self._kept.update(added)
        self._dropped.difference_update(added, by_fate[Fate.ZEROED])
        self._dropped.update(by_fate[Fate.DROPPED])
        self._zeroed.update(zeroed)
        if known != (len(self._kept), len(self._dropped), len(self._zeroed)):
            self._learned = None

    def _is_zero(self, gradient: NotedGradient) -> bool:
        """Whether it is zero at the boundary, as far as that is known without a look at it."""
        if gradient.version == gradient.zero_at:
            return True
        return bool(gradient.before) and self._zeroed_by.get(gradient.path) == gradient.before

    def _recorded(self) -> GradientRecord:
        kept: list[str] = []
        zero: list[str] = []
        pending: list[str] = []
        shed = [path for path, _ in self._light]
        for path, gradient in self._found.items():
            if gradient.is_kept:
                kept.append(path)
                continue
            gradient.was_zero = self._is_zero(gradient)
            if gradient.was_zero:
                zero.append(path)
            else:
                (shed if path in self._zeroed or path in self._dropped else pending).append(path)
        return GradientRecord(
            tuple(kept),
            tuple(zero),
            tuple(shed),
            tuple(pending),
            tuple((path, gradient.form) for path, gradient in self._found.items() if gradient.form is not None),
            tuple(self._digests(pending if self._looks < _LOOKS else []).items()),
            self._what_is_learned(),
        )

    def _what_is_learned(self) -> Learned:
        if self._learned is None:
            kept, dropped, zeroed = (tuple(sorted(paths)) for paths in (self._kept, self._dropped, self._zeroed))
            self._learned = Learned(kept, dropped, zeroed, tuple(self._zeroed_by.items()))
        return self._learned

    def _digests(self, pending: Iterable[str]) -> dict[str, str]:
        """Of what no comparison of ranks has covered yet: a new process can tell whether it was given the same."""
        contents = {}
        for path in pending:
            there = self._found[path].there()
            if there is not None and is_plain(there):
                contents[path] = there
        if self.changed:
            contents.update((path, g.content) for path, g in self._found.items() if g.content is not None)
        return digest.digests(contents) if contents else {}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Path -> content at the latest boundary, of those that are part of the state."""
        return {
            device.GRADIENT + path: g.content for path, g in self._found.items() if g.is_kept and g.content is not None
        }

    def tensors_now(self) -> dict[str, torch.Tensor]:
        """The same behind the update: what is there now."""
        kept = [(path, p) for path, p in zip(self._paths, self._parameters) if path in self._kept]
        now = gradients_of([parameter for _, parameter in kept])
        return {device.GRADIENT + path: local(g).detach() for (path, _), g in zip(kept, now) if g is not None}

    def to_give(self) -> dict[str, torch.Tensor]:
        """The same, and what may turn out to be part of it, as far as its content is still known."""
        if self._within:
            self._note_added()
        else:
            self._look()
        found = {}
        for path in (*self.record.kept, *self.record.pending):
            gradient = self._found[path]
            there = gradient.there()
            if gradient.content is not None:
                found[device.GRADIENT + path] = gradient.content
            elif gradient.fate is Fate.ZEROED:
                found[device.GRADIENT + path] = local(zeros(gradient.parameter, gradient.form))
            elif gradient.fate is Fate.OPEN and there is not None and is_plain(there):
                found[device.GRADIENT + path] = local(there).detach()
        return found

    # In the step.

    def before_backward(self) -> None:
        """Raises UnsupportedError where fully_shard has kept gradients that it has not reduced yet."""
        if self._within:
            self._note_added()  # within another one, or after one that was broken off
        is_first = not self._begun
        self._begun = self._within = True
        if is_first:
            if fsdp2.has_unreduced():
                raise UnsupportedError(_refused("of fully_shard, not reduced yet", "nobody else has them"))
            self._promote()
        if self._open:
            self._look(first=is_first)
            if is_first:
                self._copy_open()

    def after_backward(self) -> None:
        self._within = False
        if self._open:
            self._note_added()

    def used_by(self, optimizer: torch.optim.Optimizer) -> None:
        """It is about to update its parameters with the gradients that are there: those as well that nothing was added to."""
        if not self._open:
            return
        self._look()
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for gradient in self._open:
            if id(gradient.parameter) in own:
                gradient.fate = Fate.ADDED
        self._close()

    def at_gate(self) -> None:
        """Raises StateMismatchError where the step adds to gradients that this process has not got for sure."""
        if self._open:
            self._look()
        found = [(gradient, gradient.there()) for gradient in self._found.values()]
        there = [(gradient, tensor) for gradient, tensor in found if tensor is not None]
        for (gradient, _), version in zip(there, versions([tensor for _, tensor in there])):
            gradient.at_gate = version
        for path in [path for path in self._unproven if path in self._found]:
            if self._found[path].is_kept or self._found[path].fate is Fate.ADDED:
                raise StateMismatchError(_refused(path, "this process has taken over a rank before that was known"))
            if self._found[path].fate is not Fate.OPEN:
                self._unproven.discard(path)

    def passed(self) -> None:
        """The gate: nobody goes back to the boundary any more."""
        for gradient in self._found.values():
            gradient.content = None

    def _promote(self) -> None:
        """Those that were expected to be dropped, and are there still."""
        if not self._light:
            return
        now = gradients_of([parameter for _, parameter in self._light])
        left = [(path, parameter, g) for (path, parameter), g in zip(self._light, now) if g is not None]
        for (path, parameter, gradient), version in zip(left, versions([gradient for _, _, gradient in left])):
            self._found[path] = noted = NotedGradient(path, parameter, gradient, version)
            self._open.append(noted)

    def _look(self, *, first: bool = False) -> None:
        """When the script has had its turn: what it has written to was zeroed, or is kept."""
        asked = []
        for gradient, tensor, version in self._still_there(Fate.DROPPED):
            if self._is_known_zero(gradient, version):
                gradient.fate = Fate.ZEROED
            elif version != gradient.version or (first and self._may_look(gradient)):
                asked.append((gradient, tensor, version))
        for (gradient, _, version), is_zero in zip(asked, are_zero([tensor for _, tensor, _ in asked])):
            if is_zero:
                self._saw_zero(gradient, version)
            elif version != gradient.version:
                gradient.fate = Fate.ADDED
        self._close()

    def _still_there(self, otherwise: Fate) -> list[tuple[NotedGradient, torch.Tensor, int]]:
        """Open ones that are bound, with their versions. `otherwise`: the fate of those that have another one in their place."""
        found, tensors = [], []
        now = gradients_of([gradient.parameter for gradient in self._open])
        for gradient, tensor in zip(self._open, now):
            if tensor is not None and tensor is gradient.there():
                found.append(gradient)
                tensors.append(tensor)
            else:
                gradient.fate = otherwise if tensor is not None else Fate.DROPPED
        return [*zip(found, tensors, versions(tensors))]

    def _close(self) -> None:
        self._open = [gradient for gradient in self._open if gradient.fate is Fate.OPEN]

    def _may_look(self, gradient: NotedGradient) -> bool:
        """At one that was not written to since the boundary. In each step that would cost as much as zeroing it."""
        if gradient.path in self._dropped and not self._is_early():
            return False
        return bool(gradient.before) or self._looks < _LOOKS or self._is_mark()

    def _is_early(self) -> bool:
        """Whether so few steps were seen that what they do may be another thing in each second or third."""
        return self._seen <= _LOOKS

    def _is_mark(self) -> bool:
        return self._boundary & (self._boundary - 1) == 0

    def _is_known_zero(self, gradient: NotedGradient, version: int) -> bool:
        if version == gradient.zero_at:
            return True
        if gradient.before is None or self._is_mark():
            return False
        writes = gradient.before + version - gradient.version
        return writes > 0 and self._zeroed_by.get(gradient.path) == writes

    def _saw_zero(self, gradient: NotedGradient, version: int) -> None:
        gradient.fate, gradient.zero_at = Fate.ZEROED, version
        gradient.was_zero = gradient.was_zero or version == gradient.version
        if gradient.before is not None and gradient.before + version - gradient.version > 0:
            self._zeroed_by[gradient.path] = gradient.before + version - gradient.version
            self._learned = None

    def _copy_open(self) -> None:
        """What is left over when the first backward begins, as long as nobody knows what the step does with it."""
        shed = set() if self._is_early() else self._dropped | self._zeroed
        left = [gradient for gradient in self._open if gradient.path not in shed]
        if not left:
            return
        self._looks += 1
        for gradient in left if self._looks <= _LOOKS else ():
            there = gradient.there()
            if there is not None:
                gradient.keep(there)

    def _note_added(self) -> None:
        """When a backward has had its turn, or a part of it."""
        for gradient, _, version in self._still_there(Fate.ADDED):
            if version != gradient.version:
                gradient.fate = Fate.ADDED
        self._close()

    # Going back, and taking over.

    def put_back(self) -> None:
        """As they were at the boundary. Raises StateMismatchError where that is not known any more.

        Those that steps zero or drop are as the step has left them at that point: they will be zeroed or dropped again.
        """
        if self._within:
            self._note_added()
        else:
            self._look()
        self._within = False
        gone = dict(zip(self._paths, self._parameters))
        for path, gradient in self._found.items():
            parameter = gone.pop(path)
            content = gradient.content
            if gradient.is_kept or gradient.fate is Fate.ADDED:
                if content is None:
                    raise StateMismatchError(_refused(path, "that was not known when the step began"))
                self._put(gradient, content)
            elif gradient.fate is Fate.ZEROED:
                self._put(gradient, None)
            elif gradient.fate is Fate.DROPPED:
                put_gradient(parameter, None)
        if not self._begun:
            for path, _ in self._light:
                gone.pop(path)
        for parameter in gone.values():
            put_gradient(parameter, None)

    def _put(self, gradient: NotedGradient, content: torch.Tensor | None) -> None:
        """`content`: None for zeros. Into the tensor that was there, or into the one that is there now, if it fits."""
        (now,) = gradients_of([gradient.parameter])
        target = gradient.there()
        if target is None:
            form = gradient.form or form_of(gradient.parameter)
            target = now if now is not None and form_of(now) == form else zeros(gradient.parameter, gradient.form)
        with torch.no_grad():
            part = local(target).detach()
            part.zero_() if content is None else part.copy_(content)
        put_gradient(gradient.parameter, target)
        if content is None:
            gradient.zero_at = versions([target])[0]

    def begin_again(self, state: HostState, boundary: int) -> None:
        """The rank stands at the boundary that it has noted last. Its communicators were exchanged, so gradients may have moved."""
        self._looks = 0
        zero = {*self.record.zero}
        self._note(state, boundary)
        for path in zero & self._found.keys():
            gradient = self._found[path]
            gradient.zero_at = gradient.version

    def take_over(self, learned: Learned, unproven: Iterable[str]) -> None:
        """In a process that joins, before it takes its boundary. `unproven`: what it may hold otherwise than the lost rank."""
        self._kept |= {*learned.kept}
        self._dropped |= {*learned.dropped}
        self._zeroed |= {*learned.zeroed}
        self._zeroed_by |= dict(learned.zeroed_by)
        self._learned = None
        self._unproven, self._told = {*unproven}, len(self._kept)
        self._found, self._light, self._open = {}, [], []


def _check_plain(path: str, gradient: torch.Tensor) -> None:
    if not is_plain(gradient):
        raise UnsupportedError(_refused(path, f"a {local(gradient).layout} tensor cannot be carried"))


def _check_carried(path: str, state: HostState) -> None:
    if any(wrappers.is_fsdp1(module) for root in state.roots for module in root.modules()):
        raise UnsupportedError(_refused(path, "FullyShardedDataParallel exchanges them by itself"))


def _refused(path: str, reason: str) -> str:
    return (
        f"gradients are kept across optimizer steps ({path}), and {reason}: what one step leaves is added to by the next. "
        "Call zero_grad() in each step"
    )


def _size_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
