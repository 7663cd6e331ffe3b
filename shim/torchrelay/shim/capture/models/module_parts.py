"""Tell which modules a tree of modules consists of: a trainer may put a wrapper in place of the model, inside of its loss.

Another process is told which modules those are, by where they stand elsewhere or by their class. Where it has another module, it
takes what stands in its own variables and attributes where the record has that module, or makes one of that class: a layer that
training has added, a head that it has exchanged. What such a module has is told with the rest of the tree.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.models.spaces import is_scripted, module_at, put_all
from torchrelay.shim.capture.models.spaces import parts as parts_of
from torchrelay.shim.capture.state.tags import OWN, PART, REF
from torchrelay.shim.capture.values.replay_point import ABSENT

if TYPE_CHECKING:
    from torchrelay.shim.capture.models.modules import ModuleTree
    from torchrelay.shim.capture.records.encode import Encoder

Parts = dict[str, dict[str, Any]]
"""Path of a module -> names in it, in their order -> what is bound there: None, (REF, node), (PART, node, path), or (OWN, class)
for a module that is known by its place in this tree. What is below a module that is known elsewhere is told there.

(OWN, class, attributes) of one that another process may have to make: attributes that are no state, such as functions.
"""


def written(encoder: Encoder, tree: ModuleTree, number: int) -> Parts:
    """Return the parts of a tree in written form. `number`: of the tree's node."""
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
                meant = OWN, encoder.name_of_class(class_of(child))
                if child is not None and (may_be_new(tree) or _is_new(tree, path, child)):
                    meant = *meant, encoder.mapping(tree.hidden_attributes(path))
            elif meant is not None and tree.names_by_id()[id(child)] == path:
                known_elsewhere.add(path)
            found[owner][name] = meant
    return found


def may_be_new(tree: ModuleTree) -> bool:
    """Return whether more than set-up may have made the tree. In a process that has taken over a rank this is not known."""
    return tree.of_set_up is None or tree.is_rebound


def _is_new(tree: ModuleTree, path: str, module: torch.nn.Module) -> bool:
    return tree.of_set_up is not None and class_of(module) is not tree.of_set_up.get(path)


def cannot_be_made(encoder: Encoder, tree: ModuleTree, values: Sequence[Any], number: int) -> list[str]:
    """Return what another process lacks of modules that training has made: their paths, or those of their attributes.

    `values`: of the tree's slots.
    """
    made = dict(_made_by_training(encoder, tree, number))
    carried = {name for name, _ in tree.hooks_of_training()}.difference(encoder.hooks_lost(tree))
    hooked = {name for (name, _), count in tree.hooks.items() if count} - carried
    found = {path for path, module in made.items() if path in hooked or not encoder.name_of_class(class_of(module))}
    found |= {path for path, module in made.items() if is_scripted(module)}
    for (path, key), value in zip(tree.slots, values):
        if path in made and encoder.is_lost(value):
            found.add(_joined(path, key))
    for path in made:
        found |= {_joined(path, key) for key, value in tree.hidden_attributes(path).items() if encoder.is_lost(value)}
    return sorted(found)


def _made_by_training(encoder: Encoder, tree: ModuleTree, number: int) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield modules that were not there when set-up was over, and that only this tree holds, with the modules below them.

    The root is yielded, too, if it was not there.
    """
    first = tree.of_set_up
    if first is None:  # all of it
        first = {}
        yield "", tree.root
    held = {id(value) for node in encoder.state.nodes for _, value in node.edges if isinstance(value, torch.nn.Module)}
    told = written(encoder, tree, number)
    elsewhere: set[str] = set()
    for owner, children in tree.bindings():
        if owner not in told or owner in elsewhere or (owner and owner.rpartition(".")[0] in elsewhere):
            elsewhere.add(owner)
            continue
        for name, child in children.items():
            path = _joined(owner, name)
            if child is None or told[owner][name][0] != OWN or class_of(child) is first.get(path):
                continue
            if id(child) in held:
                elsewhere.add(path)
            else:
                yield path, child


Decode = Callable[[Any, Any], Any]
Elsewhere = Callable[[str], Iterable[Any]]
"""Path in the tree -> what stands in this process where something else held that module, too."""


def put(parts: Parts, root: torch.nn.Module, decode: Decode, elsewhere: Elsewhere, made: set[int]) -> bool:
    """Bind this process's modules as they were bound where `parts` were written. Return whether any was bound anew.

    Where that cannot be, they stay as they are: `check` tells. `made`: gets the ids of modules that are made for it.
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
                    if found is ABSENT and len(meant) > len((OWN, "class")) and meant[1]:
                        found = make_module(pickle.loads(meant[1]))
                        made.add(id(found))
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


def make_module(cls: type) -> torch.nn.Module:
    """Make a module as pickle does, without its attributes: metrics wrap their own methods in `__setstate__`."""
    made: torch.nn.Module = object.__new__(cls)
    made.__dict__.update(vars(torch.nn.Module()))
    made.__setstate__({})
    return made


def hidden(parts: Parts) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the attributes that are no state, with their paths, for modules that may have been made."""
    for owner, children in parts.items():
        for name, meant in children.items():
            if meant is not None and meant[0] == OWN and len(meant) > len((OWN, "class")):
                yield _joined(owner, name), meant[2]


def _is_of(module: Any, meant: tuple[Any, ...]) -> bool:
    """Return whether the module is of the recorded class; True where the class has no name by which it could be found."""
    return module is not None and (not meant[1] or pickle.loads(meant[1]) is class_of(module))


def _first_of(found: Iterable[Any], meant: tuple[Any, ...]) -> Any:
    return next((module for module in found if meant[1] and _is_of(module, meant)), ABSENT)


def _decoded(meant: Any, decode: Decode) -> Any:
    try:
        return decode(meant, ABSENT)
    except AttributeError:  # the other tree has no such module
        return ABSENT


def check(parts: Parts, root: torch.nn.Module) -> None:
    """Raise StateMismatchError where this tree has no module, or one of another class, in the place of a recorded one."""
    for owner, children in parts.items():
        module = _below(root, owner)
        own = {} if module is None else parts_of(module)
        for name, meant in children.items():
            there = own.get(name)
            path = _joined(owner, name)
            if (there is None) != (meant is None):
                was = "none" if meant is None else "one"
                raise StateMismatchError(f"{path}: the model had {was} where it was recorded, and here it is otherwise")
            if meant is not None and meant[0] == OWN and not _is_of(there, meant):
                raise StateMismatchError(f"{path} is a {type(there).__name__} here, and was something else")


def class_of(module: Any) -> type:
    """Return the module's class. A lazy module counts from the start as what it becomes in its first forward."""
    cls: type = getattr(type(module), "cls_to_become", None) or type(module)
    return cls


def _below(root: torch.nn.Module, path: str) -> torch.nn.Module | None:
    try:
        return module_at(root, path)
    except AttributeError:
        return None


def _joined(owner: str, name: str) -> str:
    return f"{owner}.{name}" if owner else name
