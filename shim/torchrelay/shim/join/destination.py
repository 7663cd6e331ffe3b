"""Where a joiner's tensors arrive: its own model and optimizers, with optimizer state made where training had made it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.protocol.messages import Plan
from torchrelay.shim.adapters.parallel import wrappers
from torchrelay.shim.adapters.tensors.dtensor import local
from torchrelay.shim.adapters.tensors.parameter_gradients import gradients_of, put_gradient
from torchrelay.shim.capture.models import device, optimizer_order
from torchrelay.shim.capture.records.effects import Effect, Way
from torchrelay.shim.capture.rng import tensor_bytes
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.comm.collective_records import RESULT
from torchrelay.shim.gradients.gradient_record import GradientRecord, put, zeros
from torchrelay.shim.journal import payload
from torchrelay.shim.saves import save_records
from torchrelay.shim.tensors.tensor_bytes import write

if TYPE_CHECKING:
    from torchrelay.shim.replicas.own_tensor_copies import OwnCopy
    from torchrelay.shim.transfer import Arrived, TensorInfo, TransferStats
    from torchrelay.shim.transfer.pace import Moved

_BESIDE = (device.GRADIENT, device.EFFECTS)
"""What a rank's own copy has beside tensors that have a place here begins with these."""
_CONNECTIONS = 4
_DEADLINE_S = 300.0


class Destination:
    """May receive again when a donor was lost in its midst: it goes on from what has arrived.

    `needed`: paths of large values that the lost rank had beside its model and optimizers.

    `saves`: tensors of checkpoints that it was saving: a donor that is through with one has them no more.

    `behind`: the step's update is done, the next head is not reached: what a donor has bound anew between two training loops is
    received as it was before.

    `copy`: what the lost rank has copied of its own tensors, whatever a donor has in their place. `carried`: paths of further
    tensors that do not come from a donor. `lacking`: paths of optimizer state that the donor has for itself.

    `compared`: paths of parameters whose gradients were compared: the donor has the same, but for those that the copy has.
    """

    def __init__(
        self,
        state: HostState,
        needed: Collection[str],
        saves: Mapping[str, torch.Tensor],
        *,
        behind: bool = False,
        copy: OwnCopy | None = None,
        carried: Collection[str] = (),
        lacking: Collection[str] = (),
        compared: Collection[str] = (),
    ) -> None:
        self._state = state
        self._saves = saves
        self._behind = behind
        self._copy = copy
        copied = [] if copy is None else [path for path in copy.views if not path.startswith(_BESIDE)]
        self._own = device.catalogue(state, state.roots)
        # What stands beside models, and is not large here, has come with the journal.
        self._copied = frozenset(path for path in copied if path in self._own or not path.startswith(device.VALUE))
        self._carried = self._copied.union(carried)
        self._lacking = frozenset(lacking)
        self._compared = frozenset(compared)
        self.has_before = False
        """Whether the donor has tensors of the next loop, and those of the one before beside them."""
        self._needed = {f"value.{path}" for path in needed} - self._carried - {*copied}
        for path, (name, tensor) in device.under_other_names(state, self._needed - self._own.keys()).items():
            self._own.pop(name, None)
            self._own[path] = tensor
        self._own_models = {path.partition(".")[0] for path in self._own}
        self._arrived: Arrived | None = None
        self._infos: tuple[TensorInfo, ...] = ()
        """Of what the donor has."""
        self._elsewhere: dict[str, torch.Tensor] = {}
        """What the donor has and nobody here needs."""
        self.gradients: dict[str, torch.Tensor] = {}
        """Those of the donor, if it still had them."""
        self._updated: dict[str, torch.Tensor] = {}
        """What the donor's tensors and gradients held right after the update."""
        self.received: frozenset[str] = frozenset()
        """Paths of all that has come."""
        self.results: dict[str, torch.Tensor] = {}
        """Of collectives that the donor has finished since the gate, where they were too large for a record."""

    def receive(self, plan: Plan, generation: int, protection: str, moved: Moved) -> TransferStats:
        """Receive the donor's tensors. `protection`: of what comes from another machine. `moved`: told now and then how far it is.

        Raises StateMismatchError, ChannelClosedError, RefusedError, CheckpointError.
        """
        from torchrelay.shim import transfer

        self._arrived = self._arrived or transfer.Arrived()
        if plan.kept:
            from torchrelay.shim.replicas import kept_tensors

            return kept_tensors.load(Path(plan.kept), self.place)
        if plan.directory:
            from torchrelay.shim.replicas import tensor_files

            return tensor_files.load(Path(plan.directory), self.place, moved)
        return transfer.receive(
            plan.donor_host,
            plan.donor_port,
            generation=generation,
            token=plan.token,
            place=self.place,
            more=list(zip(plan.more_hosts, plan.more_ports)),
            arrived=self._arrived,
            connections=_CONNECTIONS,
            deadline_s=_DEADLINE_S,
            protection=protection,
            moved=moved,
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return all tensors of this process by path, once they were received, but those that are carried."""
        found = device.whole(self._state, self._state.roots)
        return {path: tensor for path, tensor in found.items() if path not in self._carried}

    def effects(self) -> dict[Way, Effect] | None:
        """Return what the update has left beside tensors; None where nobody has looked.

        That is the lost rank's own update where it has left a copy, and the donor's else.
        """
        is_given = device.EFFECTS in self.received and not self.has_before
        given = self._elsewhere[device.EFFECTS] if is_given else None
        left = given if self._copy is None else self._copy.views.get(device.EFFECTS)
        return None if left is None else payload.load(tensor_bytes(left), dict)

    def check_names(self, state: HostState) -> bool:
        """Check that each tensor has the name that the donor has for it, where the next loop has bound names to other objects.

        Return whether any tensor is called otherwise than before. `state`: what training can get at there. Models and optimizers
        are numbered in the order in which variables lead to them. Where one rank alone has bound a variable, numbers are others,
        and tensors of one form would be exchanged. Raises StateMismatchError.
        """
        theirs = payload.load(tensor_bytes(self._elsewhere[device.NAMES]), dict)
        ours = device.names_before(device.whole(self._state, self._state.roots), device.whole(state, state.roots))
        self._check_own(ours)
        unlike = {path for path, before in ours.items() if theirs.get(path) != before}
        if "" in ours.values():  # by their order alone are new ones told apart
            unlike |= theirs.keys() - ours.keys()
        if unlike:
            path = min(unlike)
            here, there = ("nothing" if n is None else n or "new" for n in (ours.get(path), theirs.get(path)))
            raise StateMismatchError(
                f"{path} of the loop that begins is another tensor on the donor: before it, here {here}, there {there}"
            )
        return any(before not in ("", now) for now, before in ours.items())

    def _check_own(self, names_before: Mapping[str, str]) -> None:
        """Check that what the lost rank alone held is called as before, and that no tensor is new that may be made of it.

        The lost rank's copy has the names of before, and the donor has other content under those of now.
        Raises StateMismatchError.
        """
        own = self._carried | self._copied_gradients().keys()
        if not own:
            return
        moved = {now for now, before in names_before.items() if not before or (now != before and {now, before} & own)}
        if moved:
            raise StateMismatchError(
                f"{min(moved)} of the loop that begins was called otherwise before, or is new, and the lost rank alone held "
                f"{len(own)} tensors: what they are called by now is not known for sure"
            )

    def take_updated(self) -> None:
        """Put what the update has left into the tensors that a donor has written to since.

        This process goes through the rest of the step, and writes to them as the lost rank would have.
        """
        with torch.no_grad():
            for path, content in self._updated.items():
                if path in self._own and path not in self._carried:
                    write(self._own[path], content)
        self._carried |= self._updated.keys() & self._own.keys()

    def take_updated_gradients(self) -> frozenset[str]:
        """Put the gradients that the update has left in place of this process's own. Return their paths."""
        found = set()
        for path, parameter in self._parameters().items():
            content = self._updated.get(device.GRADIENT + path)
            (gradient,) = gradients_of([parameter])
            if self._has_own_gradient(path) or content is None or gradient is None:
                continue
            if gradient.shape == content.shape:
                with torch.no_grad():
                    gradient.copy_(content)
                found.add(device.GRADIENT + path)
        return frozenset(found)

    def carried(self) -> dict[str, torch.Tensor]:
        """Return the tensors that are this rank's own, and not the donor's."""
        return {path: self._own[path] for path in self._carried}

    def put_copy(self) -> bool:
        """Fill what the lost rank has copied of its own tensors. Return whether there is such a copy.

        Raises StateMismatchError where one has no place here.
        """
        if self._copy is None:
            return False
        for info in self._copy.infos:
            if info.path in self._copied and info.path not in self._own:
                self._optimizer_state(info)
        self._copy.put({path: self._own[path] for path in self._copied})
        self._order_optimizer_state(self._copy.infos)
        return True

    def copied(self) -> list[str]:
        """Return the paths of all that the lost rank has copied, but what its update has left beside tensors."""
        views = {} if self._copy is None else self._copy.views
        return [path for path in views if path != device.EFFECTS]

    def put_copied_gradients(self) -> None:
        """Put the gradients that the lost rank has copied behind its update in place of this process's own.

        Raises StateMismatchError where this process has none of that form.
        """
        copied = self._copied_gradients()
        for path, parameter in self._parameters().items():
            (gradient,) = gradients_of([parameter])
            content = copied.get(path)
            if content is None:
                continue
            if gradient is None or local(gradient).shape != content.shape:
                raise StateMismatchError(f"the gradient of {path} that the lost rank has copied is not there here")
            with torch.no_grad():
                local(gradient).detach().copy_(content)

    def known_gradients(self) -> frozenset[str]:
        """Return the paths of gradients that have come, or that the lost rank has copied."""
        return frozenset(self.gradients) | {device.GRADIENT + path for path in self._copied_gradients()}

    def _copied_gradients(self) -> dict[str, torch.Tensor]:
        views = {} if self._copy is None else self._copy.views
        return {p.removeprefix(device.GRADIENT): v for p, v in views.items() if p.startswith(device.GRADIENT)}

    def again(self, state: HostState | None = None) -> Destination:
        """Return a destination for the same tensors once more.

        They are those of `state` if given: training may have given them other memory meanwhile.
        """
        needed = [path.removeprefix("value.") for path in self._needed]
        if state is not None and self.has_before:
            needed = []  # what another loop has beside models, nobody knows
        return Destination(
            state or self._state,
            needed,
            self._saves,
            copy=self._copy,
            carried=self._carried,
            lacking=self._lacking,
            compared=self._compared,
        )

    def own_gradients(self) -> dict[str, torch.Tensor]:
        """Return the gradients of a shadow step: this process's own, not those of all ranks."""
        return device.gradients(self._state)

    def enter(self, record: GradientRecord, *, own: bool) -> set[str]:
        """Put the gradients at a boundary's head, as `gradient_record.put` does."""
        copied = self._copied_gradients()
        unproven = put(record, self._parameters(), self._received() | copied, own=own)
        return unproven.difference(copied.keys() & record.pending)

    def make_gradients(self, record: GradientRecord) -> None:
        """Make gradients as there were at a boundary, without their content: for a step that is gone through without peers."""
        put(record._replace(kept=(), shed=(*record.kept, *record.shed)), self._parameters(), {}, own=False)

    def make_optimizer_state(self) -> None:
        """Make what an optimizer needs beside its numbers, without its content: for a step without peers, too."""
        for _, optimizer in self._state.optimizers:
            optimizer_order.make_missing(optimizer)

    def put_gradients(self, record: GradientRecord) -> set[str]:
        """Put the gradients where the donor stands, behind an update. `record`: of the boundary before.

        Returns the paths of those that it has not given.
        """
        forms = dict(record.forms)
        received = self._received()
        copied = self._copied_gradients()
        left = set()
        for path, parameter in device.parameters(self._state).items():
            (gradient,) = gradients_of([parameter])
            if path in received:
                if gradient is None:
                    gradient = zeros(parameter, forms.get(path))
                    put_gradient(parameter, gradient)
                with torch.no_grad():
                    local(gradient).detach().copy_(received[path])
            elif gradient is not None and path not in copied:
                left.add(path)
        return left

    def _parameters(self) -> dict[str, torch.Tensor]:
        """Return the parameters whose gradients are put. The first FSDP has its own way with them, and keeps none across steps."""
        modules = (module for root in self._state.roots for module in root.modules())
        return {} if any(map(wrappers.is_fsdp1, modules)) else device.parameters(self._state)

    def _received(self) -> dict[str, torch.Tensor]:
        return {path.removeprefix(device.GRADIENT): tensor for path, tensor in self.gradients.items()}

    def _has_own_gradient(self, path: str) -> bool:
        """Return whether the lost rank has copied the gradient of this parameter, or nobody knows if the donor has the same.

        Ranks may hold a parameter alike and parts of its gradient, or the other way round.
        """
        return path in self._copied_gradients() or (path in self._copied and path not in self._compared)

    def place(self, infos: Sequence[TensorInfo]) -> Mapping[str, torch.Tensor]:
        """Return the tensors to fill, by path. Raises StateMismatchError for one that has no place here."""
        before = [info for info in infos if info.path.startswith(device.BEFORE)]
        self.received = frozenset(info.path.removeprefix(device.BEFORE) for info in infos)
        self.has_before = bool(before)
        if self._behind:  # what stands beside models and the step has made has come with the gate's journal
            made = {path for path in self._own if path.startswith(device.VALUE)}
            self._carried |= made - self.received - self._needed
        # What an earlier donor had beside them may have come in part, or from somebody else.
        self.gradients = {}
        self.results = {}
        self._updated = {}
        if not before:
            return self._place(infos)
        if not self._behind:
            now = [info for info in infos if not info.path.startswith(device.BEFORE)]
            return {**{info.path: self._room(info, {}) for info in before}, **self._place(now)}
        then = {replace(info, path=info.path.removeprefix(device.BEFORE)): info.path for info in before}
        then |= {info: info.path for info in infos if info.path.startswith((RESULT, save_records.PREFIX))}
        placed = self._place([*then])
        found = {info.path: self._room(info, {}) for info in infos if info.path not in then.values()}
        return found | {path: placed[info.path] for info, path in then.items()}

    def _place(self, infos: Sequence[TensorInfo]) -> Mapping[str, torch.Tensor]:
        found = {}
        for info in infos:
            tensor = self._own.get(info.path)
            if tensor is not None and tensor.dtype is not info.dtype and info.path.startswith("optimizer"):
                # A step of this process's own has made it, under a default dtype that training has set since.
                tensor = None
            if info.path.startswith(device.GRADIENT):
                tensor = self._room(info, self.gradients)
                if not self._has_own_gradient(
                    info.path.removeprefix(device.GRADIENT)
                ):  # else the donor has another one
                    self.gradients[info.path] = tensor
            if info.path.startswith(device.UPDATED):
                tensor = self._updated[info.path.removeprefix(device.UPDATED)] = self._room(info, {})
            if info.path in (device.EFFECTS, device.NAMES):
                tensor = self._room(info, {})
            if info.path.startswith(RESULT):
                tensor = self.results[info.path] = self._room(info, self.results)
            if info.path.startswith(save_records.PREFIX):
                tensor = self._room(info, self._saves)  # if it does not fit, digests tell that something is missing
            if tensor is None and self._is_donors_own(info.path):
                tensor = self._room(info, self._elsewhere)
            if info.path in self._carried:
                tensor = self._room(info, {})
            found[info.path] = tensor if tensor is not None else self._optimizer_state(info)
        self._infos = tuple(infos)
        missing = self._needed - found.keys()
        if missing:
            raise StateMismatchError(f"the donor has no tensor {', '.join(sorted(missing)[:5])}")
        self._order_optimizer_state(infos)
        return found

    def _is_donors_own(self, path: str) -> bool:
        """Whether the donor has this for itself, such as an average of the weights that it alone keeps."""
        if path.startswith("value."):
            return path not in self._needed
        if path.startswith("module"):
            return path.partition(".")[0] not in self._own_models
        return path in self._lacking

    def _room(self, info: TensorInfo, known: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the known tensor if it fits; otherwise memory for what is the donor's own affair."""
        for tensor in (known.get(info.path), self._elsewhere.get(info.path)):
            if tensor is not None and (tuple(tensor.shape), tensor.dtype) == (tuple(info.shape), info.dtype):
                return tensor
        self._elsewhere[info.path] = made = torch.empty(info.shape, dtype=info.dtype)
        return made

    def _order_optimizer_state(self, infos: Sequence[TensorInfo]) -> None:
        """Order optimizer state as the donor has it: as parameters had their first gradients, which `state_dict` shows.

        What it has nothing of stays where it is: the optimizer has made it when it was built.
        """
        own = (path for path in dict.fromkeys(info.path for info in infos) if path not in self._lacking)
        theirs = dict.fromkeys(path.rpartition(".")[0] for path in own if path.startswith("optimizer"))
        for number, (_, optimizer) in enumerate(self._state.optimizers):
            optimizer_order.restore(optimizer)
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            paths = {f"optimizer{number}.{place}": parameter for place, parameter in enumerate(parameters)}
            found = [paths[path] for path in theirs if path in paths and paths[path] in optimizer.state]
            among = set(map(id, found))
            following = iter(found)
            for parameter in [next(following) if id(p) in among else p for p in optimizer.state]:
                optimizer.state[parameter] = optimizer.state.pop(parameter)

    def _optimizer_state(self, info: TensorInfo) -> torch.Tensor:
        kind, _, rest = info.path.partition(".")
        place, _, key = rest.partition(".")
        if not kind.startswith("optimizer") or not place.isdigit():
            raise StateMismatchError(f"this process has no tensor {info.path}")
        number = int(kind.removeprefix("optimizer"))
        if number >= len(self._state.optimizers):
            raise StateMismatchError(f"this process has no optimizer for {info.path}")
        optimizer = self._state.optimizers[number][1]
        groups = [(group, p) for group in optimizer.param_groups for p in group["params"]]
        if int(place) >= len(groups):
            raise StateMismatchError(f"this process has no parameter for {info.path}")
        group, parameter = groups[int(place)]
        own_shape = tuple(local(parameter).shape)
        beside = tuple(info.shape) == own_shape or group.get("fused") or group.get("capturable")
        tensor = torch.empty(info.shape, dtype=info.dtype, device=parameter.device if beside else "cpu")
        tensor = optimizer_order.in_strides(optimizer, int(place), parameter, key, tensor)
        self._own[info.path] = tensor
        optimizer.state[parameter][key] = device.like_parameter(parameter, key, tensor)
        return tensor
