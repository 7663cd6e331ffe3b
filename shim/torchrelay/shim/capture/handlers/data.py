"""Handle data loaders, their iterators and data sets. What was drawn comes again from the record of draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from torch.utils.data import IterableDataset

from torchrelay.shim.capture.handlers.handler import Handler, encode_mapping, made_for_one_use
from torchrelay.shim.capture.handlers.objects import fill_attributes
from torchrelay.shim.capture.iteration import data_changes
from torchrelay.shim.capture.iteration.loader_order import loader_of
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.change_detection import WalkAnew
from torchrelay.shim.capture.state.data_origins import Maker, Origin, Place
from torchrelay.shim.capture.state.edges import same_mapping
from torchrelay.shim.capture.state.host_state import Deep, StateNode
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
from torchrelay.shim.capture.values.kinds import DATA, Kind, kind_of
from torchrelay.shim.capture.values.replay_point import ABSENT, ReplayPoint

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode, Encoder
    from torchrelay.shim.capture.records.rebuild import StateRebuild
    from torchrelay.shim.capture.walks.walk import Walk


class DataForm(NamedTuple):
    """What making a loader or a data set takes beside its content. Written as a plain tuple.

    The first four are those of its origin. Where training has made it, nothing that set-up makes can stand for it. `lacking`:
    attributes that are not carried. `arguments`: what torch keeps of those that a loader was made with. `content`: digests of what
    is not carried, as far as they are known.
    """

    maker: int
    number: int
    seen_at: int
    place: Place
    lacking: tuple[str, ...] = ()
    arguments: Any = ()
    content: Mapping[str, bytes] = MappingProxyType({})

    @classmethod
    def of(cls, origin: Origin, lacking: Iterable[str] = (), arguments: Any = ()) -> DataForm:
        place = origin.place if origin.maker is Maker.EACH_PROCESS else ()
        names = tuple(lacking)
        content = {name: found for name, found in (origin.content or {}).items() if name in names or name in arguments}
        return cls(int(origin.maker), origin.number, origin.seen_at, place, names, arguments, content)

    @property
    def is_made(self) -> bool:
        return self.maker != Maker.EACH_PROCESS

    @property
    def is_any_content(self) -> bool:
        """Return whether nothing tells what was in it: only the process that has made it knows."""
        return self.maker == Maker.STEP and bool(self.lacking) and not self.content


def form_of(node: EncodedNode) -> DataForm:
    """Return the form of a loader's or a data set's node."""
    return DataForm(*node.extra)


def _note(walk: Walk, obj: Any, parent: int) -> None:
    """Note whether training has made what is seen for the first time, and the data sets that it consists of.

    A generator of set-up's is begun anew in a new process, and makes its own.
    """
    made = walk.trees.data_origins
    nodes = walk.state.nodes
    if made.knows(obj):
        return
    number = parent
    while number >= 0 and (nodes[number].kind is not Kind.GENERATOR or made.is_made(nodes[number].obj)):
        number = nodes[number].parent
    below = data_changes.data_sets_below(obj) if kind_of(type(obj)) is Kind.DATASET else ()
    made.note((obj, *below), made.fresh() if number < 0 else Maker.EACH_PROCESS)


def _carry_if_light(walk: Walk, obj: Any) -> None:
    """Make all attributes state of what a step, or an earlier iteration of an outer loop, has made, if they are little.

    A new process may make the like itself, where it finds none. So what is much is left to it.
    """
    origins = walk.trees.data_origins
    if origins.is_made(obj):
        names = own_attributes(obj).keys()
        if not names <= data_changes.carried(obj).keys() and data_changes.is_light(obj, origins.is_set_ups):
            data_changes.carry(obj, names)


def _capture_loader(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    """Capture what is below the replay point: what decides the order of the data, and what a class or the script has set."""
    _note(walk, obj, parent)
    _carry_if_light(walk, obj)
    content = _own_of_loader(obj)
    edges = {**_arguments(walk.trees, obj), **_not_plain(content), **below_loader(obj)}
    number = walk.add(kind, obj, parent, key, content)
    walk.state.nodes[number].seen = walk.trees.data_origins.maker(obj)
    walk.push(number, edges)


def _own_of_loader(obj: Any) -> dict[str, Any]:
    return {**loader_own(obj), **data_changes.carried(obj)}


def _arguments(trees: ModuleTrees, obj: Any) -> dict[str, Any]:
    return _not_plain(made_with(obj)) if trees.data_origins.is_made(obj) else {}


def _same_loader(trees: ModuleTrees, node: StateNode) -> bool:
    content = _own_of_loader(node.obj)
    edges = {key: value for key, value in node.edges if type(key) is not Deep}
    return (
        node.seen is trees.data_origins.maker(node.obj)
        and same_mapping(content, node.content)
        and same_mapping({**_arguments(trees, node.obj), **_not_plain(content), **loader_parts(node.obj)}, edges)
        and still_there(node.obj, node.edges)
    )


def _undo_loader(node: StateNode) -> None:
    set_attributes(node.obj, node.content, remove_new=False)


def _form_of_loader(encoder: Encoder, node: StateNode) -> tuple[Any, ...]:
    """Return the form of a loader. Its data set is too much to be written down."""
    origin = encoder.state.data_origins.origin(node.obj)
    if origin.maker is Maker.EACH_PROCESS:
        return tuple(DataForm.of(origin))
    arguments = {name: _argument(encoder, name, value) for name, value in made_with(node.obj).items()}
    own = (name for name in own_attributes(node.obj) if name not in node.content)
    return tuple(DataForm.of(origin, own, arguments))


def _argument(encoder: Encoder, name: str, value: Any) -> Any:
    if name not in LOADER_PARTS or value is None or kind_of(type(value)) is Kind.PLAIN:
        return encoder.value(value)
    return encoder.reference(value) or (OPAQUE, type(value).__qualname__)


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
    number = walk.add(kind, obj, parent, key, None)
    loader = loader_of(obj)
    if loader is not None:
        _note(walk, loader, number)
        if kind_of(type(loader.dataset)) is Kind.DATASET:
            _note(walk, loader.dataset, number)
        _carry_made_data(walk, obj, loader)
        walk.edge(number, "loader", loader)


def _carry_made_data(walk: Walk, iterator: Any, loader: Any) -> None:
    """Make all attributes state of what steps have made: the loader, and the data sets that it draws from.

    Raises WalkAnew where a walk that goes on from another one has met it before.
    """
    made = walk.trees.data_origins
    dataset = loader.dataset
    if id(iterator) in made.of_loops or made.maker(loader) is not Maker.STEP:
        return
    data = (dataset, *data_changes.data_sets_below(dataset)) if kind_of(type(dataset)) is Kind.DATASET else ()
    for owner in (loader, *data):
        names = own_attributes(owner)
        if made.maker(owner) is not Maker.STEP or names.keys() <= data_changes.carried(owner).keys():
            continue
        data_changes.carry(owner, names)
        number = walk.state.index.get(id(owner))
        if number is not None:
            if walk.state.takes_over:
                raise WalkAnew
            node = walk.state.nodes[number]
            carried = data_changes.carried(owner)
            new = {name: value for name, value in carried.items() if name not in node.content}
            node.content = {**node.content, **new}
            walk.push(number, _not_plain(new))


def _of_loader_iterator(parent: Any, key: Any) -> Any:
    return loader_of(parent, ABSENT)


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
    origin = encoder.state.data_origins.origin(node.obj)
    names = attributes(node.obj) if origin.maker is not Maker.EACH_PROCESS else ()
    return tuple(DataForm.of(origin, (name for name in names if name not in node.content)))


def _is_whole_dataset(rebuild: StateRebuild, node: EncodedNode) -> bool:
    return rebuild.has_all(node.content)


def _capture_dataset(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    """Capture what of a data set is state: plain attributes, generators, and containers once training has changed them.

    Which data sets it draws from is state, too, though their content is not.
    """
    _note(walk, obj, parent)
    _carry_if_light(walk, obj)
    content, generators = below_dataset(obj)
    carried = data_changes.carried(obj)
    number = walk.add(kind, obj, parent, key, {**content, **_data_of(generators), **carried})
    walk.state.nodes[number].seen = walk.trees.data_origins.maker(obj)
    walk.push(number, {**generators, **_not_plain(carried)})


def _data_of(below: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the data sets and loaders among what hangs below a data set right away."""
    return {name: value for name, value in below.items() if type(name) is str and kind_of(type(value)) in DATA}


def _not_plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if kind_of(type(value)) is not Kind.PLAIN}


def _same_dataset(trees: ModuleTrees, node: StateNode) -> bool:
    plain, below = dataset_parts(node.obj)
    carried = data_changes.carried(node.obj)
    edges = {key: value for key, value in node.edges if type(key) is not Deep}
    return (
        node.seen is trees.data_origins.maker(node.obj)
        and same_mapping({**plain, **_data_of({**below, **loaders_below(node.obj)}), **carried}, node.content)
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
