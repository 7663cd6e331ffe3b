"""Which modules a tree of modules consists of: a trainer puts the wrapper of a model in place of the model, inside of its loss.

Another process is told which modules those are, by where they stand elsewhere or by their class. Where it has another one, it
takes what stands in its own variables and attributes where the record has that module.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.models.spaces import module_at, put_all
from torchrelay.shim.capture.models.spaces import parts as parts_of
from torchrelay.shim.capture.state.tags import OWN, PART, REF
from torchrelay.shim.capture.values.replay_point import ABSENT

if TYPE_CHECKING:
    from torchrelay.shim.capture.models.modules import ModuleTree
    from torchrelay.shim.capture.records.encode import Encoder

Parts = dict[str, dict[str, Any]]
"""Path of a module -> names in it, in their order -> what is bound there: None, (REF, node), (PART, node, path), or (OWN, class)
for a module that is known by its place in this tree. What is below a module that is known elsewhere is told there.
"""


def written(encoder: Encoder, tree: ModuleTree, number: int) -> Parts:
    """`number`: of the tree's node."""
    found: Parts = {}
    known_elsewhere: set[str] = set()
    for owner, children in tree.bindings():
        if owner in known_elsewhere or (owner and owner.rpartition(".")[0] in known_elsewhere):
            known_elsewhere.add(owner)
            continue
        if not children:
            continue
        found[owner] = {}
        for name, child in children.items():
            path = _joined(owner, name)
            meant = None if child is None else encoder.reference(child) or encoder.part(child)
            if meant == (PART, number, path):
                meant = (OWN, encoder.name_of_class(class_of(child)))
            elif meant is not None and tree.names_by_id()[id(child)] == path:
                known_elsewhere.add(path)
            found[owner][name] = meant
    return found


def made_by_training(encoder: Encoder, tree: ModuleTree, number: int) -> list[str]:
    """Paths of modules that were not there when set-up was over, and that nothing but this tree holds."""
    first = tree.of_set_up
    if first is None:
        return []
    held = {id(value) for node in encoder.state.nodes for _, value in node.edges if isinstance(value, torch.nn.Module)}
    found: list[str] = []
    known: set[str] = set()
    told = written(encoder, tree, number)
    for owner, children in tree.bindings():
        if owner not in told or owner in known or (owner and owner.rpartition(".")[0] in known):
            known.add(owner)
            continue
        for name, child in children.items():
            path = _joined(owner, name)
            if child is None or told[owner][name][0] != OWN or class_of(child) is first.get(path):
                continue
            known.add(path)
            if id(child) not in held:
                found.append(path)
    return found


Decode = Callable[[Any, Any], Any]
Elsewhere = Callable[[str], Iterable[Any]]
"""Path in the tree -> what stands in this process where something else held that module, too."""


def put(parts: Parts, root: torch.nn.Module, decode: Decode, elsewhere: Elsewhere) -> bool:
    """Bind this process's modules as they were bound where `parts` were written. Return whether anything was bound anew.

    Where that cannot be, they stay as they are: `check` tells.
    """
    changed = False
    for tag in (OWN, REF, PART):  # from the root down; a part may be below a module that has a node of its own
        for owner, children in parts.items():
            module = _below(root, owner)
            for name, meant in children.items():
                if module is None or meant is None or meant[0] != tag:
                    continue
                there = parts_of(module).get(name)
                if tag == OWN:
                    found = there if _is_of(there, meant) else _first_of(elsewhere(_joined(owner, name)), meant)
                else:
                    found = _decoded(meant, decode)
                if found is not ABSENT and found is not there:
                    parts_of(module)[name] = found
                    changed = True
    return _put_names(parts, root) or changed


def _put_names(parts: Parts, root: torch.nn.Module) -> bool:
    changed = False
    for owner, children in parts.items():
        module = _below(root, owner)
        own = {} if module is None else parts_of(module)
        then = {name: None if meant is None else own.get(name, ABSENT) for name, meant in children.items()}
        if any(child is ABSENT for child in then.values()):
            continue
        if [*own] != [*then] or any(own[name] is not child for name, child in then.items()):
            put_all(own, then)
            changed = True
    return changed


def _is_of(module: Any, meant: tuple[int, bytes]) -> bool:
    """Whether it is of the class that was recorded; True where that has no name by which it could be found."""
    return module is not None and (not meant[1] or pickle.loads(meant[1]) is class_of(module))


def _first_of(found: Iterable[Any], meant: tuple[int, bytes]) -> Any:
    return next((module for module in found if meant[1] and _is_of(module, meant)), ABSENT)


def _decoded(meant: Any, decode: Decode) -> Any:
    try:
        return decode(meant, ABSENT)
    except AttributeError:  # the other tree has no such module
        return ABSENT


def check(parts: Parts, root: torch.nn.Module) -> None:
    """Raise StateMismatchError where this tree has no module, or one of another class, where one was recorded."""
    for owner, children in parts.items():
        module = _below(root, owner)
        own = {} if module is None else parts_of(module)
        for name, meant in children.items():
            there, path = own.get(name), _joined(owner, name)
            if (there is None) != (meant is None):
                was = "none" if meant is None else "one"
                raise StateMismatchError(f"{path}: the model had {was} where it was recorded, and here it is otherwise")
            if meant is not None and meant[0] == OWN and not _is_of(there, meant):
                raise StateMismatchError(f"{path} is a {type(there).__name__} here, and was something else")


def class_of(module: Any) -> type:
    """What a lazy module becomes in its first forward counts as its class before that, too."""
    cls: type = getattr(type(module), "cls_to_become", None) or type(module)
    return cls


def _below(root: torch.nn.Module, path: str) -> torch.nn.Module | None:
    try:
        return module_at(root, path)
    except AttributeError:
        return None


def _joined(owner: str, name: str) -> str:
    return f"{owner}.{name}" if owner else name
