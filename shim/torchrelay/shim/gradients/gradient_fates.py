"""Find out what becomes, in a step, of the gradients that were there at its boundary.

The look is where a backward begins or ends.
"""

from __future__ import annotations

import torch

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters.parallel import fsdp2
from torchrelay.shim.adapters.tensors.parameter_gradients import gradients_of
from torchrelay.shim.gradients.gradient_habits import Habits
from torchrelay.shim.gradients.gradient_uses import GradientUses
from torchrelay.shim.gradients.noted_gradient import Fate, NotedGradient, are_zero, is_plain, refused, versions


class Fates:
    def __init__(self, habits: Habits) -> None:
        self._habits = habits
        self.found: dict[str, NotedGradient] = {}
        """Gradients of the latest boundary by path, but for those that are expected to be dropped."""
        self.light: list[tuple[str, torch.Tensor]] = []
        """Path and parameter of each gradient that is expected to be dropped."""
        self._open: list[NotedGradient] = []
        """The gradients of `found` that are not kept, and whose fate is not known."""
        self._within = False
        """Whether a backward has begun and has not ended."""
        self.have_begun = False
        """Whether there was a backward in this step."""
        self._uses = GradientUses(self._note_used)

    def begin_step(self) -> None:
        self._within = self.have_begun = False

    def begin_with(self, found: dict[str, NotedGradient], light: list[tuple[str, torch.Tensor]]) -> None:
        self.found = found
        self.light = light
        self._open = [gradient for gradient in found.values() if not gradient.is_kept]
        there = ((gradient.path, gradient.there()) for gradient in self._open)
        self._uses.begin({path: tensor for path, tensor in there if tensor is not None and is_plain(tensor)})

    # In the step.

    def before_backward(self) -> None:
        """Look at the gradients, and copy the open ones at the step's first backward.

        Raises UnsupportedError where fully_shard has kept gradients that it has not reduced yet.
        """
        if self._within:
            self._note_added()  # within another one, or after one that was broken off
        is_first = not self.have_begun
        self.have_begun = self._within = True
        if is_first:
            if fsdp2.has_unreduced():
                raise UnsupportedError(refused("of fully_shard, not reduced yet", "nobody else has them"))
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
        """Count the gradients of this optimizer's parameters as used. It is about to update the parameters with them.

        That holds also for a gradient that nothing was added to.
        """
        if not self._open:
            return
        self._look()
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        for gradient in self._open:
            if id(gradient.parameter) in own:
                gradient.fate = Fate.ADDED
        self._close()

    def at_gate(self) -> None:
        if self._open:
            self._look()

    def step_ends(self) -> None:
        """Follow the step no longer: no head comes after it, or nobody looks any more."""
        self._uses.end()

    def settle(self) -> None:
        """Find out what has become of the open gradients, wherever the step stands."""
        if self._within:
            self._note_added()
        else:
            self._look()

    def break_off(self) -> None:
        """Find out what has become of the open gradients, where the step goes no further."""
        self.settle()
        self._within = False

    # What has become of the gradients.

    def _promote(self) -> None:
        """Note the gradients that were expected to be dropped, and are there still."""
        if not self.light:
            return
        now = gradients_of([parameter for _, parameter in self.light])
        left = [(path, parameter, g) for (path, parameter), g in zip(self.light, now) if g is not None]
        for (path, parameter, gradient), version in zip(left, versions([gradient for _, _, gradient in left])):
            self.found[path] = noted = NotedGradient(path, parameter, gradient, version)
            self._open.append(noted)

    def _note_used(self, path: str) -> None:
        """Count this gradient as part of the state: the step has computed something from it, whatever it does to it later."""
        gradient = self.found[path]
        there = gradient.there()
        if gradient.fate is Fate.OPEN:
            if there is not None and gradient.content is None and versions([there]) == [gradient.version]:
                gradient.keep(there)
            gradient.fate = Fate.ADDED
            self._open = [other for other in self._open if other is not gradient]

    def _look(self, *, first: bool = False) -> None:
        """Find out what the script's own code has done: a gradient that it has written to was zeroed, or is kept."""
        asked = []
        habits = self._habits
        for gradient, tensor, version in self._still_there(Fate.DROPPED):
            if habits.is_known_zero(gradient, version):
                gradient.fate = Fate.ZEROED
            elif version != gradient.version or (first and habits.may_look(gradient)):
                asked.append((gradient, tensor, version))
        for (gradient, _, version), is_zero in zip(asked, are_zero([tensor for _, tensor, _ in asked])):
            if is_zero:
                habits.saw_zero(gradient, version)
            elif version != gradient.version:
                gradient.fate = Fate.ADDED
        self._close()

    def _note_added(self) -> None:
        """Find out what a backward, or a part of it, has added to."""
        for gradient, _, version in self._still_there(Fate.ADDED):
            if version != gradient.version:
                gradient.fate = Fate.ADDED
        self._close()

    def _still_there(self, otherwise: Fate) -> list[tuple[NotedGradient, torch.Tensor, int]]:
        """Return the open gradients that are still bound, with their versions.

        `otherwise`: the fate of a gradient that has another one in its place.
        """
        found = []
        tensors = []
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
        self._uses.only({gradient.path for gradient in self._open})

    def _copy_open(self) -> None:
        for gradient in self._habits.to_copy(self._open):
            there = gradient.there()
            if there is not None:
                gradient.keep(there)
