"""Find the gradients at a boundary that the step beginning there would add to: they are part of the rank's state.

Most scripts zero their gradients somewhere between an update and the first backward that adds to them, and for those nothing is
kept. A gradient that a backward was seen to add to, or an update to use, is copied at each boundary from then on, on its own
device. Before anything is known, in the first steps, the gradients that are left over when the first backward begins are copied
once.

Whether a gradient is older than the boundary is told, in each step, by the tensor's identity and by torch's count of writes. Where
a gradient was written to before it was added to, a look at it tells whether the writes have made zeros of it. From then on the same
number of writes is taken to do so again.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError
from torchrelay.shim.adapters.parallel import wrappers
from torchrelay.shim.adapters.raw_memory.list_pointers import pointers
from torchrelay.shim.adapters.tensors.dtensor import local
from torchrelay.shim.adapters.tensors.parameter_gradients import gradients_of, put_gradient
from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.gradients.gradient_fates import Fates
from torchrelay.shim.gradients.gradient_habits import Habits
from torchrelay.shim.gradients.gradient_record import GradientRecord, Learned, form_of, zeros
from torchrelay.shim.gradients.noted_gradient import Fate, NotedGradient, is_plain, refused, versions
from torchrelay.shim.tensors import digest
from torchrelay.shim.tensors.tensor_bytes import size_bytes


class KeptGradients:
    """Keep the gradients of the parameters of models and optimizers, by their paths in the catalogue."""

    def __init__(self) -> None:
        self._habits = Habits()
        self.fates = Fates(self._habits)
        self._paths: list[str] = []
        self._parameters: list[torch.Tensor] = []
        self._named: list[object] = []
        """The objects whose identity tells whether the names of the parameters still hold."""
        self._present: list[bool] = []
        self._unproven: set[str] = set()
        """Paths of gradients that may differ here from those of the rank that this process has taken over."""
        self.record = GradientRecord()
        """The record for the journal of the latest boundary."""
        self._told = 0
        """How many gradients were kept at the latest boundary that a journal was written at."""
        self.changed = False
        """Whether more gradients are part of the state at this boundary than at the one before."""
        self.copied_bytes = self.most_copied_bytes = 0
        """Bytes copied at the latest boundary, and the most at any boundary."""

    # At the head.

    def at_boundary(self, state: HostState, boundary: int) -> None:
        """Note the gradients at this boundary. Raises UnsupportedError where gradients are kept that cannot be carried."""
        self._note(state, boundary)
        self._told = len(self._habits.kept)

    def _note(self, state: HostState, boundary: int) -> None:
        habits = self._habits
        fates = self.fates
        self._learn(state)
        self.changed = len(habits.kept) > self._told
        habits.at_boundary(boundary)
        fates.begin_step()
        is_same_list = self._note_parameters(state)
        gradients = gradients_of(self._parameters)
        present = [gradient is not None for gradient in gradients]
        if is_same_list and not fates.found and len(fates.light) == sum(present) and present == self._present:
            return  # all of them will be dropped, as ever
        self._present = present
        before = fates.found
        found = dict[str, NotedGradient]()
        light: list[tuple[str, torch.Tensor]] = []
        there: list[tuple[str, torch.Tensor, torch.Tensor]] = []
        for path, parameter, gradient in zip(self._paths, self._parameters, gradients):
            if gradient is None or gradient.is_meta:
                continue
            if path in habits.dropped and path not in self._unproven and not habits.is_early():
                light.append((path, parameter))
            else:
                there.append((path, parameter, gradient))
        for (path, parameter, gradient), version in zip(there, versions([gradient for _, _, gradient in there])):
            noted = before.get(path)
            if noted is not None and noted.parameter is parameter and noted.there() is gradient:
                noted.at_boundary(version)
            else:
                noted = NotedGradient(path, parameter, gradient, version)
                noted.note_form(gradient)
            found[path] = noted
            noted.is_kept = path in habits.kept
            if noted.is_kept:
                _check_plain(path, gradient)
                noted.keep(gradient)
        fates.begin_with(found, light)
        self.copied_bytes = sum(size_bytes(g.content) for g in found.values() if g.content is not None)
        self.most_copied_bytes = max(self.most_copied_bytes, self.copied_bytes)
        self.record = self._recorded()

    def _note_parameters(self, state: HostState) -> bool:
        """Note the parameters. Return whether they are the same as before."""
        lists = [large for large, _ in state.tree_versions]
        flat = [p for _, optimizer in state.optimizers for group in optimizer.param_groups for p in group["params"]]
        named = [*lists, *flat]
        if pointers(named) == pointers(self._named):
            return True
        self._named = named
        found = device.parameters(state)
        paths = {id(parameter): path for path, parameter in found.items()}
        before = {path: paths.get(id(parameter), path) for path, parameter in zip(self._paths, self._parameters)}
        moved = {path: now for path, now in before.items() if now != path}
        if moved:
            self._habits.rename(moved)
            self._unproven = {before.get(path, path) for path in self._unproven}
        self._paths = list(found)
        self._parameters = list(found.values())
        return False

    def _learn(self, state: HostState) -> None:
        """Learn from the step that is over."""
        for path, gradient in self.fates.found.items():
            if gradient.fate is Fate.ADDED and path not in self._habits.kept:
                _check_carried(path, state)
        self._habits.learn(self.fates.found)

    def _recorded(self) -> GradientRecord:
        habits = self._habits
        found = self.fates.found
        kept: list[str] = []
        zero: list[str] = []
        pending: list[str] = []
        shed = [path for path, _ in self.fates.light]
        for path, gradient in found.items():
            if gradient.is_kept:
                kept.append(path)
                continue
            gradient.was_zero = habits.was_zero(gradient)
            if gradient.was_zero:
                zero.append(path)
            else:
                (shed if path in habits.zeroed or path in habits.dropped else pending).append(path)
        return GradientRecord(
            tuple(kept),
            tuple(zero),
            tuple(shed),
            tuple(pending),
            tuple((path, gradient.form) for path, gradient in found.items() if gradient.form is not None),
            tuple(self._digests(pending if habits.is_copied() else []).items()),
            habits.learned(),
        )

    def _digests(self, pending: Iterable[str]) -> dict[str, str]:
        """Return digests of contents that no comparison of ranks has covered yet.

        With them a new process can tell whether it was given the same.
        """
        contents = {}
        for path in pending:
            there = self.fates.found[path].there()
            if there is not None and is_plain(there):
                contents[path] = there
        if self.changed:
            copied = [(path, g.content) for path, g in self.fates.found.items() if g.content is not None]
            contents.update((path, content) for path, content in copied if is_plain(content))
        return digest.digests(contents) if contents else {}

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return path -> content at the latest boundary, for the gradients that are part of the state."""
        return {
            device.GRADIENT + path: g.content
            for path, g in self.fates.found.items()
            if g.is_kept and g.content is not None
        }

    def tensors_now(self) -> dict[str, torch.Tensor]:
        """Return path -> content as it is now, behind the update, for the gradients that are part of the state."""
        kept = [(path, p) for path, p in zip(self._paths, self._parameters) if path in self._habits.kept]
        now = gradients_of([parameter for _, parameter in kept])
        return {device.GRADIENT + path: local(g).detach() for (path, _), g in zip(kept, now) if g is not None}

    def open_now(self) -> dict[str, torch.Tensor]:
        """Return path -> content as it is now, in the first steps, for gradients that may turn out to be part of the state.

        Nobody knows that yet, and ranks may have other ones.
        """
        if not self._habits.is_early():
            return {}
        known = self._habits.kept | self._habits.dropped | self._habits.zeroed
        pairs = [(path, parameter) for path, parameter in zip(self._paths, self._parameters) if path not in known]
        now = gradients_of([parameter for _, parameter in pairs])
        found = {device.GRADIENT + path: g for (path, _), g in zip(pairs, now) if g is not None and not g.is_meta}
        return {path: local(g).detach() for path, g in found.items() if is_plain(g)}

    def to_give(self) -> dict[str, torch.Tensor]:
        """Return path -> content at the latest boundary, for the gradients that are or may turn out to be part of the state.

        One whose content is not known any more is left out.
        """
        self.fates.settle()
        found = {}
        for path in (*self.record.kept, *self.record.pending):
            gradient = self.fates.found[path]
            there = gradient.there()
            if gradient.content is not None:
                found[device.GRADIENT + path] = gradient.content
            elif gradient.fate is Fate.ZEROED:
                found[device.GRADIENT + path] = local(zeros(gradient.parameter, gradient.form))
            elif gradient.fate is Fate.OPEN and there is not None:
                found[device.GRADIENT + path] = local(there).detach()
        return {path: content for path, content in found.items() if is_plain(content)}

    # The gate.

    def at_gate(self) -> None:
        """Note the versions of the gradients at the gate.

        Raises StateMismatchError where the step adds to gradients that this process has not got for sure.
        """
        self.fates.at_gate()
        found = [(gradient, gradient.there()) for gradient in self.fates.found.values()]
        there = [(gradient, tensor) for gradient, tensor in found if tensor is not None]
        for (gradient, _), version in zip(there, versions([tensor for _, tensor in there])):
            gradient.at_gate = version
        for path in [path for path in self._unproven if path in self.fates.found]:
            if self.fates.found[path].is_kept or self.fates.found[path].fate is Fate.ADDED:
                raise StateMismatchError(refused(path, "this process has taken over a rank before that was known"))
            if self.fates.found[path].fate is not Fate.OPEN:
                self._unproven.discard(path)

    def passed(self) -> None:
        """Drop the copies: all ranks have passed the gate, and none goes back to the boundary any more."""
        for gradient in self.fates.found.values():
            gradient.content = None

    # Going back, and taking over.

    def put_back(self) -> None:
        """Put the gradients back as they were at the boundary. Raises StateMismatchError where that is not known any more.

        A gradient that steps zero or drop stays as the step has left it: it will be zeroed or dropped again.
        """
        self.fates.break_off()
        gone = dict(zip(self._paths, self._parameters))
        for path, gradient in self.fates.found.items():
            parameter = gone.pop(path)
            content = gradient.content
            if gradient.is_kept or gradient.fate is Fate.ADDED:
                if content is None:
                    raise StateMismatchError(refused(path, "that was not known when the step began"))
                self._put(gradient, content)
            elif gradient.fate is Fate.ZEROED:
                self._put(gradient, None)
            elif gradient.fate is Fate.DROPPED:
                put_gradient(parameter, None)
        if not self.fates.have_begun:
            for path, _ in self.fates.light:
                gone.pop(path)
        for parameter in gone.values():
            put_gradient(parameter, None)

    def _put(self, gradient: NotedGradient, content: torch.Tensor | None) -> None:
        """Put `content`, or zeros for None, into the gradient's tensor; where it is gone, into the present one, if that fits."""
        (now,) = gradients_of([gradient.parameter])
        target = gradient.there()
        if target is None:
            form = gradient.form or form_of(gradient.parameter)
            target = now if now is not None and form_of(now) == form else zeros(gradient.parameter, gradient.form)
        with torch.no_grad():
            part = local(target).detach()
            if content is None:
                part.zero_()
            else:
                part.copy_(content)
        put_gradient(gradient.parameter, target)
        if content is None:
            gradient.zero_at = versions([target])[0]

    def begin_again(self, state: HostState, boundary: int) -> None:
        """Note the gradients again, at the boundary that was noted last and where the rank stands.

        Its communicators were exchanged, so gradients may have moved.
        """
        self._habits.begin_again()
        zero = {*self.record.zero}
        self._note(state, boundary)
        for path in zero & self.fates.found.keys():
            gradient = self.fates.found[path]
            gradient.zero_at = gradient.version

    def take_over(self, learned: Learned, unproven: Iterable[str]) -> None:
        """Take over what the lost rank had learned, in a process that joins, before it takes its boundary.

        `unproven`: paths of gradients that may differ here from the lost rank's.
        """
        self._habits.take_over(learned)
        self._unproven = {*unproven}
        self._told = len(self._habits.kept)
        self.fates.begin_with({}, [])


def _check_plain(path: str, gradient: torch.Tensor) -> None:
    if not is_plain(gradient):
        raise UnsupportedError(refused(path, f"a {local(gradient).layout} tensor cannot be carried"))


def _check_carried(path: str, state: HostState) -> None:
    if any(wrappers.is_fsdp1(module) for root in state.roots for module in root.modules()):
        raise UnsupportedError(refused(path, "FullyShardedDataParallel exchanges them by itself"))
