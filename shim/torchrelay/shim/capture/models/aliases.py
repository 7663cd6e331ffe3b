"""Handle tensors and arrays of numpy that share the memory of a parameter or buffer.

`state_dict()`, `p.data`, `p.detach()` and views make such tensors, `p.detach().numpy()` such arrays. They are no state of their
own. A journal says of one whose memory it shares, so that it follows its owner in another process, too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.tensors.own_refs import OwnRef
from torchrelay.shim.adapters.tensors.storages import may_be_shared
from torchrelay.shim.adapters.tensors.tensor_classes import has_graph
from torchrelay.shim.capture.models.bound_tensors import Place, at_place
from torchrelay.shim.capture.models.optimizer_entries import entries
from torchrelay.shim.capture.state.host_state import EntryForm, HostState, OptimizerTensor
from torchrelay.shim.capture.values.kinds import Kind, kind_of
from torchrelay.shim.tensors.tensor_bytes import strides_of

if TYPE_CHECKING:
    from torchrelay.shim.capture.models.modules import ModuleTree, ModuleTrees

_PLAIN = (torch.Tensor, torch.nn.Parameter)


class Alias(NamedTuple):
    """The content of an alias's node.

    `root`: node of the model. `place`: of the owner in the model. `offset`, `stride`: in elements, from the owner's first one.
    """

    root: int
    place: Place
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str
    requires_grad: bool

    def make(self) -> torch.Tensor:
        """Return a tensor of the form, with memory of its own until `share`."""
        return torch.empty(self.shape, dtype=self.dtype, device=self.device, requires_grad=self.requires_grad)

    def fits(self, tensor: torch.Tensor) -> bool:
        return type(tensor) in _PLAIN and (tuple(tensor.shape), tensor.dtype) == (self.shape, self.dtype)

    def share(self, tensor: torch.Tensor, root: torch.nn.Module) -> None:
        """Let the tensor share its owner's memory. Raises StateMismatchError where it cannot."""
        owner = self._owner(root)
        storage = owner.untyped_storage()
        offset = owner.storage_offset() + self.offset
        where = storage.data_ptr(), offset, self.stride
        if (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tensor.stride()) == where:
            return
        try:
            with torch.no_grad():
                tensor.set_(storage, offset, self.shape, self.stride)
        except RuntimeError as e:  # of one that inference mode has made
            raise StateMismatchError(f"a tensor shares other memory than that of {self.name}") from e

    def array(self, root: torch.nn.Module) -> Any:
        """Return an array of numpy that shares the owner's memory. Raises StateMismatchError where the model lacks it."""
        owner = self._owner(root)
        return owner.detach().as_strided(self.shape, self.stride, owner.storage_offset() + self.offset).numpy()

    def _owner(self, root: torch.nn.Module) -> torch.Tensor:
        owner = at_place(root, self.place)
        if not isinstance(owner, torch.Tensor):
            raise StateMismatchError(f"the model has no tensor {self.name}")
        return owner

    @property
    def name(self) -> str:
        return ".".join(filter(None, (self.place[0], self.place[2])))


class Owners:
    """Find parameters and buffers by the memory that they have."""

    def __init__(self) -> None:
        self._found: dict[int, list[tuple[ModuleTree, torch.Tensor]]] = {}
        self._of: list[Any] = []
        self._addresses: list[int] = []
        self._is_checked = False
        """Whether these are the addresses of now. One look at all parameters does for all tensors of a walk."""

    def check_anew(self) -> None:
        """Parameters may have been given other memory since (`p.data = ...`)."""
        self._is_checked = False

    def of(self, tensor: torch.Tensor, trees: Iterable[ModuleTree]) -> tuple[torch.nn.Module, torch.Tensor] | None:
        """Return the root of the tree and the owner of all of the tensor's memory; None if it has memory of its own."""
        return self.within(tensor, address_of(tensor), trees)

    def within(
        self, tensor: torch.Tensor, address: int, trees: Iterable[ModuleTree]
    ) -> tuple[torch.nn.Module, torch.Tensor] | None:
        """Return the root and the owner as `of` does, for a tensor that looks at a part of the memory at `address`."""
        trees = [*trees]
        bound = [tree.tensors for tree in trees]
        if len(bound) != len(self._of) or any(now is not then for now, then in zip(bound, self._of)):
            self._of = bound
            self._found = {}
            self._addresses = []
            self._look(trees)
        found = self._at(tensor, address)
        if found is None and not self._is_checked and may_be_shared(tensor):
            self._look(trees)
            found = self._at(tensor, address)
        return found

    def _look(self, trees: Sequence[ModuleTree]) -> None:
        addresses = _addresses(trees)
        self._is_checked = True
        if addresses == self._addresses:
            return
        self._found = {}
        self._addresses = addresses
        owners = ((tree, owner) for tree in trees for owner in tree.tensors)
        for (tree, owner), address in zip(owners, self._addresses):
            if address:
                self._found.setdefault(address, []).append((tree, owner))

    def _at(self, tensor: torch.Tensor, address: int) -> tuple[torch.nn.Module, torch.Tensor] | None:
        for tree, owner in self._found.get(address, ()):
            if owner is tensor or address_of(owner) != address or not is_within(tensor, owner):
                continue
            if tree.still_has(owner):  # a tree is looked at after some of the tensors that a walk goes on to
                return tree.root, owner
        return None


def _addresses(trees: Iterable[ModuleTree]) -> list[int]:
    return [address_of(owner) for tree in trees for owner in tree.tensors]


def address_of(tensor: Any) -> int:
    """Return the address of a tensor's memory; 0 where it has none, or its memory is none of torch's plain ones."""
    if type(tensor) not in _PLAIN or tensor.layout is not torch.strided or tensor.is_meta:
        return 0
    return int(tensor.untyped_storage().data_ptr())


def is_within(tensor: torch.Tensor, owner: torch.Tensor) -> bool:
    """Return whether all of the tensor's memory is the owner's, as that of a flat buffer of several parameters is not."""
    if tensor.dtype is not owner.dtype or tensor.numel() == 0:
        return False
    if (tensor.data_ptr() - owner.data_ptr()) % owner.element_size():
        return False  # numpy can look at memory between two elements
    first = _elements_behind(owner, tensor)
    return first >= 0 and first + _span(tensor) <= _span(owner)


def _elements_behind(owner: torch.Tensor, tensor: torch.Tensor) -> int:
    return int(tensor.data_ptr() - owner.data_ptr()) // owner.element_size()


def _span(tensor: torch.Tensor) -> int:
    """Return the number of elements from the first one to the end of the last one."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))


def memory_of(array: Any) -> int:
    """Return the address of the memory that a tensor has made and that the array looks at; 0 if there is none."""
    base = array
    while kind_of(type(base)) is Kind.NDARRAY:
        base = base.base
    return address_of(base)


def as_tensor(array: Any) -> torch.Tensor | None:
    """Return a tensor with the array's memory, None where torch has none of its form."""
    try:
        return torch.from_numpy(array) if array.flags.writeable else None
    except (TypeError, ValueError):  # of other items than numbers, or backwards
        return None


def is_by_value(content: Any) -> bool:
    """Return whether this is an array's content, and not what stands for that."""
    return content is not None and not isinstance(content, Alias)


def find(state: HostState, trees: ModuleTrees, numbers: Iterable[int]) -> None:
    """Note which of the nodes are aliases. Optimizer state under another name, as its `state_dict()` has it, is none either."""
    trees.look_for_owners_anew()
    numbers = list(numbers)
    tensors = [n for n in numbers if state.nodes[n].kind is Kind.TENSOR]
    _find_arrays(state, trees, [n for n in numbers if state.nodes[n].kind is Kind.NDARRAY])
    if not tensors:
        return
    kept = [values for _, o in state.optimizers for values in o.state.values() if isinstance(values, dict)]
    known = {id(value): value for values in kept for value in values.values()}
    entries = _entries(state) if any(id(state.nodes[number].obj) in known for number in tensors) else {}
    _look_at_kept(state)
    unlike = {number for number, value in known.items() if type(value) not in _PLAIN}
    paths = {id(tensor): path for path, tensor in state.large.items()}
    for number in tensors:
        node = state.nodes[number]
        tensor = node.obj
        large = id(tensor) in paths
        of_loop = large and state.root(number).kind is Kind.LOOPS  # its latest draw, done again, makes it anew
        if (entry := entries.get(id(tensor))) is not None:
            if entry.optimizer in _rebinding and not large:
                continue  # by value
            node.content = _content_of(state, entry)
            node.seen = entry
            _kept.setdefault(entry.optimizer, {})[entry[2:]] = entry.parameter, OwnRef(tensor)
            if entry.optimizer in _rebinding:
                continue  # its content comes by this name, too
        elif large and (id(tensor) in unlike or of_loop or _is_of_graph(tensor)):
            node.content = None
        elif (alias := _alias(state, trees, tensor)) is not None:
            node.content = alias
        else:
            continue
        if large:
            del state.large[paths[id(tensor)]]


class Entry(NamedTuple):
    """Where an optimizer keeps a tensor."""

    optimizer: torch.optim.Optimizer
    parameter: torch.Tensor
    place: int
    name: str

    def holds(self, tensor: torch.Tensor) -> bool:
        """Return whether the optimizer still has the tensor there."""
        is_there = entries(self.optimizer.state, self.parameter).get(self.name) is tensor
        if not is_there:
            _rebinding.add(self.optimizer)
        return is_there


_rebinding: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
"""Optimizers that have bound other tensors in place of those that training keeps: an update makes the kept ones no entries."""
_kept: weakref.WeakKeyDictionary[
    torch.optim.Optimizer, dict[tuple[int, str], tuple[torch.Tensor, Callable[[], Any]]]
] = weakref.WeakKeyDictionary()
"""The entries that training keeps, as of the latest walk that met them."""


def _content_of(state: HostState, entry: Entry) -> OptimizerTensor:
    values = entry.optimizer.state[entry.parameter]
    forms = {key: _form_of(value) for key, value in values.items() if type(value) in _PLAIN}
    return OptimizerTensor(state.index[id(entry.optimizer)], entry.place, entry.name, forms)


def _form_of(tensor: torch.Tensor) -> EntryForm:
    return EntryForm(tensor.dtype, tuple(tensor.shape), str(tensor.device), strides_of(tensor.detach()))


def _entries(state: HostState) -> dict[int, Entry]:
    """Return where tensors of optimizers' states are kept, by id."""
    found: dict[int, Entry] = {}
    for _, optimizer in state.optimizers:
        for place, parameter in enumerate(parameters_of(optimizer)):
            for name, value in entries(optimizer.state, parameter).items():
                if type(value) in _PLAIN and type(name) is str:
                    found.setdefault(id(value), Entry(optimizer, parameter, place, name))
    return found


def _look_at_kept(state: HostState) -> None:
    for _, optimizer in state.optimizers:
        for (place, name), (parameter, kept) in _kept.get(optimizer, {}).items():
            if (tensor := kept()) is not None:
                Entry(optimizer, parameter, place, name).holds(tensor)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _find_arrays(state: HostState, trees: ModuleTrees, numbers: Iterable[int]) -> None:
    for number in numbers:
        node = state.nodes[number]
        found = trees.owner_of_array(node.obj)
        if found is not None and (tensor := as_tensor(node.obj)) is not None:
            node.content = _alias_of(state, trees, tensor, found) or node.content
        if node.content is None:  # large, and of a model that the script does not lead to any more
            name = f"{state.path(node.parent, node.key)} (an array of a tensor's memory)"
            if name not in state.places:
                state.unknown.append(name)
                state.places[name] = node.parent, node.key


def _is_of_graph(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is a view of a parameter that a backward goes through."""
    return has_graph(tensor) and isinstance(tensor._base, torch.nn.Parameter)


def _alias(state: HostState, trees: ModuleTrees, tensor: torch.Tensor) -> Alias | None:
    if type(tensor) not in _PLAIN or has_graph(tensor):
        return None
    found = trees.owner_of(tensor)
    return None if found is None else _alias_of(state, trees, tensor, found)


def _alias_of(
    state: HostState, trees: ModuleTrees, tensor: torch.Tensor, found: tuple[torch.nn.Module, torch.Tensor]
) -> Alias | None:
    root, owner = found
    if id(root) not in state.index:
        return None
    place = trees.tree(root).place_of(owner)
    if place is None:
        return None
    return Alias(
        state.index[id(root)],
        place,
        _elements_behind(owner, tensor),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.dtype,
        str(tensor.device),
        tensor.requires_grad,
    )
