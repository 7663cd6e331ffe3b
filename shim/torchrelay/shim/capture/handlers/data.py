"""Handle data loaders, their iterators and data sets. What was drawn comes again from the record of draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset

from torchrelay.shim.capture.handlers.handler import Handler, encode_mapping, made_for_one_use
from torchrelay.shim.capture.handlers.objects import fill_attributes
from torchrelay.shim.capture.iteration import data_changes
from torchrelay.shim.capture.iteration.loader_order import LOADER_OF
from torchrelay.shim.capture.state.edges import same_mapping
from torchrelay.shim.capture.state.host_state import Deep
from torchrelay.shim.capture.state.parts import (
    LOADER_PARTS,
    attributes,
    below_dataset,
    below_loader,
    dataset_parts,
    is_set_up,
    loader_own,
    loader_parts,
    loaders_below,
    made_with,
    set_attributes,
    still_there,
)
from torchrelay.shim.capture.state.tags import OPAQUE
from torchrelay.shim.capture.values.base_types import make_object
from torchrelay.shim.capture.values.kinds import Kind, kind_of
from torchrelay.shim.capture.values.replay_point import ABSENT

if TYPE_CHECKING:
    from torchrelay.shim.capture.models.modules import ModuleTrees
    from torchrelay.shim.capture.records.encode import EncodedNode, Encoder
    from torchrelay.shim.capture.records.rebuild import StateRebuild
    from torchrelay.shim.capture.state.host_state import StateNode
    from torchrelay.shim.capture.values.replay_point import ReplayPoint
    from torchrelay.shim.capture.walks.walk import Walk


def _capture_loader(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    """Capture what is below the replay point: what decides the order of the data, and what a class or the script has set."""
    content = _own_of_loader(obj)
    walk.push(walk.add(kind, obj, parent, key, content), {**_not_plain(content), **below_loader(obj)})


def _own_of_loader(obj: Any) -> dict[str, Any]:
    return {**loader_own(obj), **data_changes.carried(obj)}


def _same_loader(trees: ModuleTrees, node: StateNode) -> bool:
    content = _own_of_loader(node.obj)
    edges = {key: value for key, value in node.edges if type(key) is not Deep}
    return (
        same_mapping(content, node.content)
        and same_mapping({**_not_plain(content), **loader_parts(node.obj)}, edges)
        and still_there(node.obj, node.edges)
    )


def _undo_loader(node: StateNode) -> None:
    set_attributes(node.obj, node.content, remove_new=False)


def _made_of(encoder: Encoder, obj: Any) -> dict[str, Any]:
    """Return what torch keeps of the arguments that the loader was made with. The data set is too much to be written down."""
    return {
        name: encoder.reference(value) or (OPAQUE, type(value).__qualname__)
        if name in LOADER_PARTS and value is not None
        else encoder.value(value)
        for name, value in made_with(obj).items()
    }


def _make_loader(rebuild: StateRebuild, node: EncodedNode) -> Any:
    """Make a loader that training has made, without attributes so far."""
    made = None if node.cls is None else make_object(node.cls)
    return made_for_one_use(rebuild, node) if made is None else made


def _is_whole_loader(rebuild: StateRebuild, node: EncodedNode) -> bool:
    return rebuild.has_all(node.extra)


def _fill_loader(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    """Fill a loader. All that is written beside plain values and iterators was changed by the lost rank's training."""
    if not is_set_up(obj):
        set_attributes(obj, rebuild.mapping(node.extra, {}), remove_new=False)
    changed = [name for name, value in node.content.items() if type(value) is tuple]
    others = [name for name in changed if name not in loader_own(obj)]
    if others:
        data_changes.carry(obj, others)
    fill_attributes(rebuild, node, obj)


def _of_loader(parent: Any, key: Any) -> Any:
    return getattr(parent, key, ABSENT)


def _capture_loader_iterator(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    """Capture an iterator with its loader, which nothing else may hold any more: in a new process the loader has to make it."""
    number, loader = walk.add(kind, obj, parent, key, None), LOADER_OF.get(obj)
    if loader is not None:
        _carry_made_data(walk.trees, obj, loader)
        walk.edge(number, "loader", loader)


def _carry_made_data(trees: ModuleTrees, iterator: Any, loader: Any) -> None:
    """Make all attributes state for the data sets that the loader draws from and training has made."""
    made, dataset = trees.made_data, loader.dataset
    if id(iterator) in made.of_loops or not made.is_made(loader) or kind_of(type(dataset)) is not Kind.DATASET:
        return
    for owner in filter(made.is_made, (dataset, *data_changes.data_sets_below(dataset))):
        data_changes.carry(owner, attributes(owner))


def _of_loader_iterator(parent: Any, key: Any) -> Any:
    return LOADER_OF.get(parent, ABSENT)


def _capture_replay_point(walk: Walk, kind: Kind, obj: ReplayPoint, parent: int, key: Any) -> None:
    content = obj.place()
    walk.push(walk.add(kind, obj, parent, key, content), content)


def _same_place(trees: ModuleTrees, node: StateNode) -> bool:
    return same_mapping(node.obj.place(), node.content)


def _lead(rebuild: StateRebuild, node: EncodedNode, obj: ReplayPoint) -> None:
    now = obj.place()
    place = rebuild.mapping(node.content, now)
    if any(place.get(name) is not value and place.get(name) != value for name, value in now.items()):
        obj.go_to(place, rebuild.last.get(id(place.get("iterator")), ABSENT))


def _of_replay_point(parent: Any, key: Any) -> Any:
    return parent.place().get(key, ABSENT)


def _unknown_of_dataset(encoder: Encoder, obj: Any) -> tuple[str, ...]:
    """Return the attributes that are not carried. A data set that has one is not made anew."""
    known = {*dataset_parts(obj)[0], *data_changes.carried(obj)}
    return tuple(name for name in attributes(obj) if name not in known)


def _make_dataset(rebuild: StateRebuild, node: EncodedNode) -> Any:
    made = None if node.cls is None or node.extra else make_object(node.cls)
    return made_for_one_use(rebuild, node) if made is None else made


def _is_whole_dataset(rebuild: StateRebuild, node: EncodedNode) -> bool:
    return rebuild.has_all(node.content)


def _capture_dataset(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    """Capture what of a data set is state: plain attributes, generators, and containers once training has changed them."""
    content, generators = below_dataset(obj)
    carried = data_changes.carried(obj)
    walk.push(walk.add(kind, obj, parent, key, {**content, **carried}), {**generators, **_not_plain(carried)})


def _not_plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if kind_of(type(value)) is not Kind.PLAIN}


def _same_dataset(trees: ModuleTrees, node: StateNode) -> bool:
    plain, below = dataset_parts(node.obj)
    carried = data_changes.carried(node.obj)
    edges = {key: value for key, value in node.edges if type(key) is not Deep}
    return (
        same_mapping({**plain, **carried}, node.content)
        and same_mapping({**below, **loaders_below(node.obj), **_not_plain(carried)}, edges)
        and still_there(node.obj, node.edges)
    )


def _undo_dataset(node: StateNode) -> None:
    if not issubclass(type(node.obj), IterableDataset):  # it goes on from where it is
        set_attributes(node.obj, node.content, remove_new=False)


def _fill_dataset(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    """Fill a data set. All that is written beside plain values was changed by the lost rank's training: it is state here, too."""
    changed = [name for name, value in node.content.items() if type(value) is tuple]
    if changed:
        data_changes.carry(obj, changed)
    fill_attributes(rebuild, node, obj)


HANDLERS = (
    Handler(
        Kind.LOADER,
        capture=_capture_loader,
        same=_same_loader,
        undo=_undo_loader,
        encode=encode_mapping,
        extra=_made_of,
        make=_make_loader,
        is_whole=_is_whole_loader,
        fill=_fill_loader,
        child=_of_loader,
        comes_and_goes=True,
    ),
    Handler(
        Kind.LOADER_ITER,
        capture=_capture_loader_iterator,
        make=made_for_one_use,
        child=_of_loader_iterator,
        comes_and_goes=True,
    ),
    Handler(
        Kind.REPLAY_POINT,
        capture=_capture_replay_point,
        same=_same_place,
        encode=encode_mapping,
        fill=_lead,
        child=_of_replay_point,
        comes_and_goes=True,
    ),
    Handler(
        Kind.DATASET,
        capture=_capture_dataset,
        same=_same_dataset,
        undo=_undo_dataset,
        encode=encode_mapping,
        extra=_unknown_of_dataset,
        make=_make_dataset,
        is_whole=_is_whole_dataset,
        fill=_fill_dataset,
        comes_and_goes=True,
    ),
)
