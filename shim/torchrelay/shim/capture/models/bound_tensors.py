"""Tell which tensors the parameters and buffers of a tree of modules are bound to: `self.center = ...` binds another one.

A survivor gets the tensors themselves back. Another process is told the form of each, so that it can bind a tensor like it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.parallel import fsdp2
from torchrelay.shim.adapters.parallel.wrappers import is_fsdp1
from torchrelay.shim.adapters.tensors import lazy_modules
from torchrelay.shim.adapters.tensors.composite_tensors import is_composite
from torchrelay.shim.adapters.tensors.dtensor import around, local, spread_of
from torchrelay.shim.adapters.tensors.lazy_modules import is_lazy
from torchrelay.shim.adapters.tensors.storages import is_freed
from torchrelay.shim.adapters.tensors.tensor_classes import has_graph
from torchrelay.shim.capture.models.spaces import BUFFERS, PARAMETERS, Space, module_at, put_all, tensors
from torchrelay.shim.tensors.stand_ins import stand_in
from torchrelay.shim.tensors.tensor_bytes import strides_of, with_strides

Place = tuple[str, str, str]
"""Path of a module in its tree, BUFFERS or PARAMETERS, and the name."""
_ADDRESS = torch.Tensor.data_ptr
_STRIDE = torch.Tensor.stride
_OF_TORCH = frozenset({torch.Tensor, torch.nn.Parameter})
_OF_PICTURES = 4
"""Dimensions of weights that may lie in memory as `channels_last`."""
_REQUIRES_GRAD = attrgetter("requires_grad")


class TensorForm(NamedTuple):
    """The form of the tensor at one place; the shape is that of this rank's part, None for one that gets it in its first use.

    `tied`: the earlier place that holds the same tensor.
    """

    parameter: bool
    dtype: torch.dtype
    shape: tuple[int, ...] | None
    device: str
    requires_grad: bool
    persistent: bool
    spread: Any
    tied: Place | None
    strides: tuple[int, ...] = ()

    def fits(self, tensor: Any) -> bool:
        if not isinstance(tensor, torch.Tensor) or isinstance(tensor, torch.nn.Parameter) != self.parameter:
            return False
        now = tensor.dtype, shape_of(tensor), spread_of(tensor), _strides(tensor)
        return now == (self.dtype, self.shape, self.spread, self.strides)

    def make(self, device: Any = None) -> torch.Tensor:
        """Return a tensor of this form, whose content is still to come."""
        if self.shape is None:
            return lazy_modules.make(self.dtype, device or self.device, self.requires_grad, parameter=self.parameter)
        made = with_strides(stand_in(self.shape, self.dtype, device or self.device), self.strides)
        if self.spread is not None:
            made = around(made, self.spread)
        return torch.nn.Parameter(made, requires_grad=self.requires_grad) if self.parameter else made


def form_of(tensor: torch.Tensor, *, persistent: bool = True, tied: Place | None = None) -> TensorForm:
    """Return the form of a tensor."""
    return TensorForm(
        isinstance(tensor, torch.nn.Parameter),
        tensor.dtype,
        shape_of(tensor),
        str(tensor.device),
        tensor.requires_grad,
        persistent,
        spread_of(tensor),
        tied,
        _strides(tensor),
    )


def _strides(tensor: torch.Tensor) -> tuple[int, ...]:
    part = None if is_lazy(tensor) else local(tensor).detach()
    return () if part is None or is_freed(part) else strides_of(part)


def _may_get_other_strides(tensor: torch.Tensor) -> bool:
    """Return whether computing with the tensor may give one in other strides: to look at each one would cost too much.

    That is one in an order of its own, one whose order is not told by its strides, or an average that steps bind anew.
    """
    return tensor.dim() >= _OF_PICTURES or (tensor.dim() > 1 and not (tensor.requires_grad and tensor.is_contiguous()))


def shape_of(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Return the shape of this rank's part; None for a tensor that has no shape yet."""
    return None if is_lazy(tensor) else tuple(local(tensor).shape)


class BoundTensors:
    """The tensors of one tree, as long as no name is added or taken away.

    Parameters that a wrapper exchanges by itself (both FSDPs) are left alone; only their places are known.
    """

    def __init__(self, named: Sequence[tuple[str, torch.nn.Module]]) -> None:
        managed = fsdp2.managed_names(module for _, module in named)
        exchanged = any(is_fsdp1(module) for _, module in named)
        self.slots: list[Place] = []
        self._modules = [module for _, module in named]
        self._exchanged: list[tuple[Place, Space]] = []
        self._exchanged_at: dict[int, tuple[Place, Space]] = {}
        self._spaces: list[tuple[torch.nn.Module, Space, str]] = []
        self._owners: list[tuple[torch.nn.Module, str, Space, tuple[str, ...]]] = []
        for name, module in named:
            for where in (BUFFERS, PARAMETERS):
                space = tensors(module, where)
                if where == PARAMETERS and (exchanged or any((id(module), key) in managed for key in space)):
                    self._exchanged += [((name, where, key), space) for key in space]
                    continue
                self._owners.append((module, where, space, tuple(space)))
                self.slots += [(name, where, key) for key in space]
                self._spaces += [(module, space, key) for key in space]
        self._space_of = {slot: space for slot, (_, space, _) in zip(self.slots, self._spaces)}
        self.tensors: list[Any] = []
        self.forms: list[TensorForm | None] = []
        self.parameters: list[torch.Tensor] = []
        self._flags: list[bool] = []
        self._plain: list[torch.Tensor] = []
        """Those of torch's own classes that a step may give memory in other strides."""
        self._addresses: list[int] = []
        self._strides: list[tuple[int, ...]] = []
        self._lazy: list[torch.Tensor] = []
        """Those that have no shape yet."""
        self.look_again(self.take())

    def take(self) -> list[Any]:
        return [space.get(key) for _, space, key in self._spaces]

    def is_at(self, place: Place, tensor: Any) -> bool:
        """Return whether the tensor stands there now, not only by the latest look. False for places that a wrapper exchanges."""
        return self._space_of.get(place, {}).get(place[2]) is tensor

    def exchanged_place_of(self, tensor: Any) -> Place | None:
        """Return the place of a parameter that a wrapper exchanges: of this rank's shard, even while it is gathered."""
        if not self._exchanged or not isinstance(tensor, torch.nn.Parameter):
            return None
        place, space = self._exchanged_at.get(id(tensor), (None, {}))
        if place is not None and space.get(place[2]) is tensor:
            return place
        shards = fsdp2.sharded_parameters(self._modules)
        self._exchanged_at = {}
        for slot, space in self._exchanged:
            bound = space.get(slot[2])
            self._exchanged_at.setdefault(id(shards.get(id(bound), bound)), (slot, space))
        return self._exchanged_at.get(id(tensor), (None, {}))[0]

    def have_other_forms(self) -> bool:
        """Return whether some parameter was frozen, or is no longer, or some tensor was given memory in other strides."""
        if [*map(_REQUIRES_GRAD, self.parameters)] != self._flags:
            return True
        addresses = [*map(_ADDRESS, self._plain)]
        if addresses == self._addresses:
            return False
        if [*map(_STRIDE, self._plain)] != self._strides:
            return True
        self._addresses = addresses
        return False

    def have_shapes(self) -> bool:
        """Return whether some tensor has got its shape since the latest look."""
        return not all(map(is_lazy, self._lazy))

    def look_again(self, tensors: list[Any]) -> None:
        """Take these tensors, which stand in the slots now. Makes new lists, since contents hold the old ones."""
        seen: dict[int, Place] = {}
        forms: list[TensorForm | None] = []
        for slot, (module, _, key), tensor in zip(self.slots, self._spaces, tensors):
            if tensor is None:
                forms.append(None)
                continue
            persistent = key not in module.__dict__.get("_non_persistent_buffers_set", ())
            forms.append(form_of(tensor, persistent=persistent, tied=seen.get(id(tensor))))
            seen.setdefault(id(tensor), slot)
        self.tensors = tensors
        self.forms = forms
        self.parameters = [t for t in tensors if isinstance(t, torch.nn.Parameter)]
        self._flags = [*map(_REQUIRES_GRAD, self.parameters)]
        self._lazy = [t for t in tensors if t is not None and is_lazy(t)]
        self._plain = [t for t in tensors if type(t) in _OF_TORCH and not is_composite(t) and _may_get_other_strides(t)]
        self._addresses = [*map(_ADDRESS, self._plain)]
        self._strides = [*map(_STRIDE, self._plain)]

    def put_back(self, tensors: list[Any], forms: list[TensorForm | None]) -> None:
        """Bind these slots to what they were bound to, and take away names that were added since.

        Put back flags of parameters, too.
        """
        left = iter(tensors)
        for module, where, space, names in self._owners:
            then = {name: next(left) for name in names}
            if isinstance(space, dict):
                module.__dict__[where] = space
            put_all(space, then)
        for tensor, form in zip(tensors, forms):
            if form is not None and tensor.requires_grad != form.requires_grad and not has_graph(tensor):
                tensor.requires_grad_(form.requires_grad)


def at_place(root: torch.nn.Module, place: Place) -> Any:
    """Return the parameter or buffer at this place; this rank's shard of one that fully_shard has gathered at the moment.

    Raises StateMismatchError where there is none.
    """
    name, where, key = place
    try:
        module = module_at(root, name)
        bound = tensors(module, where)[key]
    except (AttributeError, KeyError) as e:
        raise StateMismatchError(f"the model has no {'.'.join(filter(None, (name, key)))}") from e
    return fsdp2.shard_of(bound) if where == PARAMETERS and bound is not None else bound


def put_forms(
    forms: Mapping[Place, TensorForm | None], by_name: Mapping[str, torch.nn.Module], *, complete: bool
) -> None:
    """Bind tensors of the recorded forms where this process has others. `complete`: names that are not in `forms` are taken away.

    Raises StateMismatchError where there is no such module.
    """
    seen: set[int] = set()
    shaped: dict[str, torch.nn.Module] = {}
    for (name, where, key), form in forms.items():
        if name not in by_name:
            raise StateMismatchError(f"the model has no module {name}")
        module = by_name[name]
        space = tensors(module, where)
        now: Any = space.get(key)
        if form is None:
            space[key] = None
            continue
        if form.tied is not None:
            owner, kind, other = form.tied
            space[key] = tensors(by_name[owner], kind)[other]
            continue
        if is_lazy(now) and form.shape is not None:
            shaped[name] = module
        if not form.fits(now) or id(now) in seen:  # in seen: tied here, and not where it was recorded
            space[key] = now = form.make(now.device if isinstance(now, torch.Tensor) else None)
        seen.add(id(now))
        if now.requires_grad != form.requires_grad and not has_graph(now):
            now.requires_grad_(form.requires_grad)
        if where == BUFFERS:
            names = module.__dict__["_non_persistent_buffers_set"]
            (names.discard if form.persistent else names.add)(key)
    lazy_modules.become(shaped.values())
    if complete:
        _take_away_others(forms, by_name)


def _take_away_others(forms: Mapping[Place, Any], by_name: Mapping[str, torch.nn.Module]) -> None:
    own = BoundTensors([*by_name.items()])
    for name, where, key in own.slots:
        if (name, where, key) not in forms:
            del tensors(by_name[name], where)[key]
