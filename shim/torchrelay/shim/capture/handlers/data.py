"""Handle data loaders, their iterators and data sets. What was drawn comes again from the record of draws."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import IterableDataset

from torchrelay.shim.capture.handlers.handler import Handler, encode_mapping, made_for_one_use
from torchrelay.shim.capture.handlers.objects import fill_attributes
from torchrelay.shim.capture.iteration import data_changes
from torchrelay.shim.capture.iteration.loader_order import LOADER_OF
from torchrelay.shim.capture.state.change_detection import WalkAnew
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
    own_attributes,
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


class DataForm(NamedTuple):
    """What making a loader or a data set takes beside its content. Written as a plain tuple.

    `is_made`: training has made it, so nothing that a new process has can stand for it. `lacking`: attributes that are not carried.
    `arguments`: what torch keeps of those that a loader was made with.
    """

    is_made: bool
    lacking: tuple[str, ...] = ()
    arguments: Any = ()


def form_of(node: EncodedNode) -> DataForm:
    """Return the form of a loader's or a data set's node."""
    return DataForm(*node.extra)


def _note(walk: Walk, obj: Any, parent: int) -> None:
    """Note whether training has made what is seen for the first time, and the data sets that it consists of.

    A generator of set-up's is begun anew in a new process, and makes its own.
    """
    made, nodes = walk.trees.made_data, walk.state.nodes
    if made.knows(obj):
        return
    number = parent
    while number >= 0 and (nodes[number].kind is not Kind.GENERATOR or made.is_made(nodes[number].obj)):
        number = nodes[number].parent
    below = data_changes.data_sets_below(obj) if kind_of(type(obj)) is Kind.DATASET else ()
    made.note((obj, *below), made=made.fresh_is_made and number < 0)


def _capture_loader(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    """Capture what is below the replay point: what decides the order of the data, and what a class or the script has set."""
    _note(walk, obj, parent)
    content = _own_of_loader(obj)
    edges = {**_arguments(walk.trees, obj), **_not_plain(content), **below_loader(obj)}
    walk.push(walk.add(kind, obj, parent, key, content), edges)


def _own_of_loader(obj: Any) -> dict[str, Any]:
    return {**loader_own(obj), **data_changes.carried(obj)}


def _arguments(trees: ModuleTrees, obj: Any) -> dict[str, Any]:
    return _not_plain(made_with(obj)) if trees.made_data.is_made(obj) else {}


def _same_loader(trees: ModuleTrees, node: StateNode) -> bool:
    content = _own_of_loader(node.obj)
    edges = {key: value for key, value in node.edges if type(key) is not Deep}
    return (
        same_mapping(content, node.content)
        and same_mapping({**_arguments(trees, node.obj), **_not_plain(content), **loader_parts(node.obj)}, edges)
        and still_there(node.obj, node.edges)
    )


def _undo_loader(node: StateNode) -> None:
    set_attributes(node.obj, node.content, remove_new=False)


def _form_of_loader(encoder: Encoder, node: StateNode) -> tuple[Any, ...]:
    """Return the form of a loader. Its data set is too much to be written down."""
    if not encoder.state.made_data.is_made(node.obj):
        return tuple(DataForm(False))
    arguments = {
        name: encoder.reference(value) or (OPAQUE, type(value).__qualname__)
        if name in LOADER_PARTS and value is not None
        else encoder.value(value)
        for name, value in made_with(node.obj).items()
    }
    own = (name for name in own_attributes(node.obj) if name not in node.content)
    return tuple(DataForm(True, tuple(own), arguments))


def _make_data(rebuild: StateRebuild, node: EncodedNode) -> Any:
    """Make a loader or a data set that training has made, without attributes so far."""
    form = form_of(node)
    made = make_object(node.cls) if form.is_made and not form.lacking and node.cls is not None else None
    return made_for_one_use(rebuild, node) if made is None else made


def _is_whole_loader(rebuild: StateRebuild, node: EncodedNode) -> bool:
    return rebuild.has_all(form_of(node).arguments)


def _fill_loader(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    """Fill a loader. All that is written beside plain values and iterators was changed by the lost rank's training."""
    if not is_set_up(obj):
        set_attributes(obj, rebuild.mapping(form_of(node).arguments, {}), remove_new=False)
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
        _note(walk, loader, number)
        if kind_of(type(loader.dataset)) is Kind.DATASET:
            _note(walk, loader.dataset, number)
        _carry_made_data(walk, obj, loader)
        walk.edge(number, "loader", loader)


def _carry_made_data(walk: Walk, iterator: Any, loader: Any) -> None:
    """Make all attributes state of what training has made: the loader, and the data sets that it draws from.

    Raises WalkAnew where a walk that goes on from another one has met it before.
    """
    made, dataset = walk.trees.made_data, loader.dataset
    if id(iterator) in made.of_loops or not made.is_made(loader):
        return
    data = (dataset, *data_changes.data_sets_below(dataset)) if kind_of(type(dataset)) is Kind.DATASET else ()
    for owner in filter(made.is_made, (loader, *data)):
        names = own_attributes(owner)
        if names.keys() <= data_changes.carried(owner).keys():
            continue
        data_changes.carry(owner, names)
        number = walk.state.index.get(id(owner))
        if number is not None:
            if walk.state.takes_over:
                raise WalkAnew
            node, carried = walk.state.nodes[number], data_changes.carried(owner)
            new = {name: value for name, value in carried.items() if name not in node.content}
            node.content = {**node.content, **new}
            walk.push(number, _not_plain(new))


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


def _form_of_dataset(encoder: Encoder, node: StateNode) -> tuple[Any, ...]:
    is_made = encoder.state.made_data.is_made(node.obj)
    return tuple(
        DataForm(is_made, tuple(name for name in attributes(node.obj) if is_made and name not in node.content))
    )


def _is_whole_dataset(rebuild: StateRebuild, node: EncodedNode) -> bool:
    return rebuild.has_all(node.content)


def _capture_dataset(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    """Capture what of a data set is state: plain attributes, generators, and containers once training has changed them."""
    _note(walk, obj, parent)
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
        extra=_form_of_loader,
        make=_make_data,
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
        extra=_form_of_dataset,
        make=_make_data,
        is_whole=_is_whole_dataset,
        fill=_fill_dataset,
        comes_and_goes=True,
    ),
)
