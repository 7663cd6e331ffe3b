"""Keep trees of modules as the journal of the set-up has them: later journals hold only the difference to these."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from torchrelay.shim.capture.models import module_parts, modules
from torchrelay.shim.capture.records.encode import class_name, pickled
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.values.kinds import PLAIN, Kind, kind_of


def begin_set_up(state: HostState, before: Sequence[bytes] = ()) -> tuple[bytes, ...]:
    """Return what the journal of the set-up holds of each tree of modules, for `tree_of`. From now on journals hold the difference.

    `before`: what a lost rank's journal held, which stays: the heads that it has recorded of loops that still run refer to it.

    Each tree is pickled by itself: the journal is read before the script begins, which imports the modules of what trees hold.

    Trees that training may have made, or has put other modules into, are left out: in a process that has taken over a rank nothing
    tells what set-up had, and the next process that takes over makes them from a boundary's journal alone.
    """
    contents = [n.content for n in state.nodes if n.kind is Kind.MODULE and not n.content.tree.is_bare()]
    records = [*before]
    for content in contents:
        tree: modules.ModuleTree = content.tree
        tree.of_set_up = {name: module_parts.class_of(module) for name, module in zip(tree.names, tree.modules)}
        tree.hooks_of_set_up = tree.hooks_but_made()
        if tree.is_rebound:
            continue
        record, base = _tree_base(content)
        tree.base_place = len(records)
        tree.base = base
        records.append(pickled(record))
    state.takes_over = False  # what was written of modules was the difference to the set-up before
    return tuple(records)


def tree_of(trees: Sequence[bytes], place: int) -> tuple[Any, ...]:
    """Return what the journal of the set-up holds of one tree."""
    record: tuple[Any, ...] = pickle.loads(trees[place])
    return record


def _tree_base(content: modules.TreeContent) -> tuple[tuple[Any, ...], modules.TreeContent]:
    """Return the record of a tree, and what is known by it: only plain values, since other objects have nodes in later journals."""
    known = [value if _is_plain(value) else _NOT_KNOWN for value in content.values]
    values = {slot: value for slot, value in zip(content.tree.slots, known) if value is not _NOT_KNOWN}
    forms = content.tree.all_forms(content)
    hooks = {place: len(kept) for place, kept in content.tree.hooks_but_made().items()}
    record: tuple[Any, ...] = (-1, content.flags, values, content.buffers, None, forms, hooks, {}, None, {})
    return record, replace(content, values=known, bound=[])


_NOT_KNOWN = object()


def _is_plain(value: Any) -> bool:
    cls = type(value)
    if cls in PLAIN:
        return True
    if cls is tuple or cls is torch.Size:
        return all(map(_is_plain, value))
    return kind_of(cls) is Kind.PLAIN and bool(class_name(cls))
