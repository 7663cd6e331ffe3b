"""Puts the host state of a lost rank into this process's objects, where the script's frames lead to them."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.cpython.cycles import CyclePlace, iterator_of
from torchrelay.shim.capture import rng
from torchrelay.shim.capture.handlers import HANDLERS
from torchrelay.shim.capture.handlers.data import DataForm, form_of
from torchrelay.shim.capture.handlers.generators import fill_where_alike, generators_to_begin
from torchrelay.shim.capture.iteration import data_content
from torchrelay.shim.capture.iteration.data_changes import data_sets_below
from torchrelay.shim.capture.iteration.data_places import places_of_parts
from torchrelay.shim.capture.iteration.loader_order import LoaderIter, loader_of
from torchrelay.shim.capture.models.aliases import is_by_value
from torchrelay.shim.capture.models.module_state import put_tree
from torchrelay.shim.capture.records.encode import EncodedNode, decode
from torchrelay.shim.capture.records.rebuild import StateRebuild
from torchrelay.shim.capture.records.set_up_trees import tree_of
from torchrelay.shim.capture.state.data_origins import DataOrigins, Maker
from torchrelay.shim.capture.state.parts import is_set_up
from torchrelay.shim.capture.values import item_mark
from torchrelay.shim.capture.values.by_identity import held
from torchrelay.shim.capture.values.item_mark import TakenItems
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.values.replay_point import ABSENT
from torchrelay.shim.data import lead_iterators
from torchrelay.shim.join.recorded import RecordedPlace
from torchrelay.shim.journal import last_draw, payload
from torchrelay.shim.journal.script_modules import script_frames

if TYPE_CHECKING:
    from torchrelay.shim.instrument.activation import Activation
    from torchrelay.shim.step.engine import Engine


_STAND = (Kind.GENERATOR, Kind.ITERATOR)
"""What is where it is by what it draws from."""


def put_state(
    engine: Engine,
    trees: tuple[Any, ...],
    state: RecordedPlace,
    innermost: FrameType,
    *,
    at_gate: bool = False,
) -> StateRebuild:
    """Put the state into this process's objects.

    `trees`: of modules, as the lost rank's set-up had made them. `at_gate`: this process has drawn the step's items itself.

    Returns what has become of the nodes. Raises StateMismatchError.
    """
    nodes = decode(state.nodes)
    loaders = state.loaders
    draw = state.draw
    rebuild = _resolved(engine, nodes, innermost, loaders, at_gate=at_gate)
    _put_bases(nodes, rebuild.objects, trees)
    if not at_gate:  # else the step that this process has done may have changed some of them
        engine.trees.settings.set_up_goes_on()
    for node, settings in rebuild.each(Kind.SETTINGS):
        settings.put(node.content)  # before anything is drawn: what a data set makes may have the default dtype
    kept: list[Any] = []
    if draw is not None:
        kept = _draw_again(engine, rebuild, last_draw.WrittenDraw.of(draw))
        rebuild = _resolved(engine, nodes, innermost)
    _fill_early(rebuild, (loaders or {}).values())
    for number, record in (loaders or {}).items():
        there = rebuild.objects[number]
        if any(there is iterator for iterator in kept):
            continue
        if state.is_passed and _loader_for(rebuild, number, record) is ABSENT:
            continue
        if nodes[number].kind is Kind.CYCLE:
            _lead_cycle(engine, rebuild, number, CyclePlace(*nodes[number].content), record)
        else:
            _lead_iterator(engine, rebuild, number, record)
    if not at_gate:
        _lead_others(engine, rebuild)
    rebuild.fill(but=_STAND if loaders is None else (), can_come=state.is_passed)
    for node, generator in rebuild.each(Kind.GENERATOR) if at_gate else ():
        fill_where_alike(rebuild, node, generator)
    if loaders is not None and not state.is_passed:
        rebuild.check_complete()
    return rebuild


def _lead_cycle(
    engine: Engine, rebuild: StateRebuild, number: int, place: CyclePlace, record: payload.LoaderRecord
) -> None:
    loader = _loader_for(rebuild, number, record)
    if loader is ABSENT:
        raise StateMismatchError("the data loader that an itertools.cycle draws from is not where the lost rank had it")
    lead_iterators.lead_cycle(engine.draws, rebuild.objects[number], place, record, loader)


def _loader_for(rebuild: StateRebuild, number: int, record: payload.LoaderRecord) -> Any:
    """Return the loader that makes the iterator here, or a cycle's; ABSENT if this process has none."""
    loader = rebuild.objects[record.loader] if record.loader >= 0 else ABSENT
    there = rebuild.objects[number]
    source = iterator_of(there) if isinstance(there, itertools.cycle) else there
    return loader_of(source, ABSENT) if loader is ABSENT and isinstance(source, LoaderIter) else loader


def _fill_early(rebuild: StateRebuild, records: Iterable[payload.LoaderRecord | None]) -> None:
    """Fill data sets early, since workers are given the data set when their iterator is made.

    A loader that was made here has nothing to draw from yet.
    """
    there = [rebuild.objects[record.loader] for record in records if record is not None and record.loader >= 0]
    if any(loader is not ABSENT and (not is_set_up(loader) or loader.num_workers > 0) for loader in there):
        rebuild.fill(but=_STAND, can_come=True)


def _lead_iterator(engine: Engine, rebuild: StateRebuild, number: int, record: payload.LoaderRecord) -> Any:
    """Make a data loader's iterator anew, and lead it to where it stood."""
    loader = _loader_for(rebuild, number, record)
    if loader is ABSENT:
        raise StateMismatchError("a data loader's iterator is not where the lost rank had it, nor is its loader")
    made, last = lead_iterators.rebuild(engine.draws, loader, record, rebuild.objects[number])
    rebuild.objects[number] = made
    rebuild.last[id(made)] = last
    return made


def _lead_others(engine: Engine, rebuild: StateRebuild) -> None:
    """Ask iterators of set-up as often as the lost rank has, before anything that they read is put to another content."""
    led = [*rebuild.each(Kind.LED)]
    if not led:
        return
    draws = engine.draws
    expected = draws.expected
    draws.expected = deque()
    now = rng.capture()
    try:
        for node, iterator in led:
            with engine.records.alone():  # what it told its peers was in steps that are over
                engine.trees.led.lead(iterator, TakenItems(*node.content[2]))
    finally:
        rng.restore(now)
        draws.expected = expected


def _draw_again(engine: Engine, rebuild: StateRebuild, draw: last_draw.WrittenDraw) -> list[Any]:
    """Draw the training loop's item again: its iterator is put to where it stood before that item, and asked.

    Returns loaders' iterators that have their places by that.
    """
    activation = engine.tracker.stack[-1]
    draws = engine.draws
    written = {number: decode([data])[0] for number, data in draw.nodes.items()}
    for number, node in written.items():
        rebuild.also(number, node)
    rebuild.make_room(draw.loaders)
    _fill_early(rebuild, draw.loaders.values())
    kept = []
    for number, record in draw.loaders.items():
        if record is None:
            rebuild.objects[number] = iter(())
        elif number in written and written[number].kind is Kind.CYCLE:
            _lead_cycle(engine, rebuild, number, CyclePlace(*written[number].content), record)
            kept.append(rebuild.objects[number])
        else:
            kept.append(_lead_iterator(engine, rebuild, number, record))
    rebuild.fill(but=_STAND)
    for number, node in written.items():
        HANDLERS[node.kind].fill(rebuild, node, rebuild.objects[number])
    rng.restore(draw.rng)
    engine.tracker.drawing = activation
    expected = draws.expected
    draws.expected = deque(None if r is None else (r, False) for r in draw.began)
    known = {id(iterator): track.epoch for iterator, track in draws.tracks.items()}
    try:
        with engine.records.answering(draw.collectives):
            activation.item = next(activation.iterator)
    except StopIteration as e:
        raise StateMismatchError("a loop's iterator ends here before the item that it has yielded") from e
    finally:
        engine.tracker.drawing = None
        draws.expected = expected
    if item_mark.mark_of(activation.item) != draw.mark:
        raise StateMismatchError("a loop's iterator yields another item here than it did in the lost rank")
    return kept + [
        iterator
        for iterator, track in draws.tracks.items()
        if id(iterator) not in known or track.epoch is not known[id(iterator)]
    ]


def _resolved(
    engine: Engine,
    nodes: list[EncodedNode],
    innermost: FrameType,
    loaders: dict[int, payload.LoaderRecord] | None = None,
    *,
    at_gate: bool = False,
) -> StateRebuild:
    """Resolve the nodes. `loaders`: iterators that are made later, if all is to be put.

    Generators that have not begun here, and so lack what their code makes, are drawn from once then: not for an iterator of a
    loader that nothing was drawn from, as where another rank reads for this one. Its loader makes that.
    """
    begun: list[Any] = []
    while True:
        loops = [activation.iterator for activation in engine.tracker.stack]
        namespaces = engine.writer.modules.namespaces()
        origins = engine.trees.data_origins
        was_made = _anything if at_gate else stands_for_made(origins, engine.tracker.stack)
        rebuild = StateRebuild(
            script_frames(innermost),
            namespaces,
            engine.saves.future,
            loops,
            settings=engine.trees.settings,
            queues=engine.trees.queues,
            files=engine.trees.files,
            made_hooks=engine.trees.made_hooks,
            is_at_gate=at_gate,
            opens=engine.opens,
            was_made=was_made,
            known_data=origins.stand_ins(),
            data_mark=max((activation.data_mark for activation in engine.tracker.stack[:-1]), default=-1),
        )
        rebuild.resolve(nodes)
        if not at_gate:
            _compare_content(rebuild, origins)
            for obj, form in rebuild.data():
                origins.take_over(obj, Maker(form.maker), form.seen_at, form.place, form.number, form.content or None)
            for obj, form in rebuild.data():
                places = places_of_parts(obj, form.place) if form.place else {}
                for part in data_sets_below(obj):
                    origins.take_over(part, Maker(form.maker), form.seen_at, places.get(id(part), ()))
            for obj in rebuild.displaced:
                origins.take_over(obj, Maker.EACH_PROCESS, 0)
            origins.recorded.update({number: held(obj) for number, obj in rebuild.told_apart()})
        engine.draws.made_generators.update(rebuild.made_generators)
        engine.trees.rebound |= rebuild.rebound
        for node, array in rebuild.each(Kind.NDARRAY):
            if is_by_value(node.content):
                engine.trees.arrays.keep(array)
        to_come = {
            number
            for number, record in (loaders or {}).items()
            if record.loader >= 0 and record.drawn == 0 and rebuild.objects[record.loader] is not ABSENT
        }
        wanting = generators_to_begin(rebuild, nodes, to_come) if loaders is not None else iter(())
        known = {*begun, *engine.draws.made_generators}
        generator = next((g for g in wanting if g not in known), None)
        if generator is None:
            return rebuild
        begun.append(generator)
        with engine.records.alone():  # the lost rank's first draw was in a step that is over: nobody has its record
            engine.draws.start(generator)


def _compare_content(rebuild: StateRebuild, origins: DataOrigins) -> None:
    """Compare the data that this process has made with what the lost rank's training had, where that is not carried.

    Raises StateMismatchError where they are not the same.
    """
    for node, obj in rebuild.data_found():
        form = form_of(node)
        if form.is_made and form.content and not origins.has_made(obj):
            names = data_content.differing(obj, form.content)
            if names:
                raise StateMismatchError(
                    f"{rebuild.path(node)}: this process has made its own {type(obj).__name__}, as the lost rank had in an "
                    f"earlier iteration, and its {', '.join(names[:3])} came out otherwise"
                )


def stands_for_made(origins: DataOrigins, stack: Sequence[Activation]) -> Callable[[Any, DataForm], bool]:
    """Return whether data of this process can stand for what the lost rank's training has made. `stack`: the running loops.

    Behind the head of an outer loop this process has begun an iteration itself, which has made what was not there at the head. It
    cannot stand for what nothing is known of.
    """
    is_behind_head = any(activation.data_mark >= 0 for activation in stack[:-1])
    return lambda obj, form: (
        origins.has_made(obj) or (is_behind_head and not origins.knows(obj) and not form.is_any_content)
    )


def _anything(obj: Any, form: DataForm) -> bool:
    """Return True: at a gate this process has done the step, and made its data, itself."""
    return True


def _put_bases(nodes: list[EncodedNode], objects: list[Any], trees: tuple[Any, ...]) -> None:
    """Put set-up's trees into the modules: journals hold the difference to them."""
    for node, root in zip(nodes, objects):
        if node.kind is Kind.MODULE and isinstance(root, torch.nn.Module) and node.content[0] >= 0:
            put_tree(tree_of(trees, node.content[0]), root, lambda value, there: value, ())
