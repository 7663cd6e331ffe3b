"""Gaps of what is drawn from: iterators that no other process can be led to, and workers of loaders that are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torchrelay.protocol.messages import Gap
from torchrelay.protocol.names import BARS, BARS_LATER
from torchrelay.shim.capture.iteration import kept_workers
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.journal import writer
from torchrelay.shim.observe.origins import NOWHERE, SourcePlace, where_made

if TYPE_CHECKING:
    from torchrelay.shim.step.boundary_snapshot import BoundarySnapshot
    from torchrelay.shim.step.engine import Engine


def no_way_in(engine: Engine, commit: BoundarySnapshot, place: Callable[[str], SourcePlace]) -> list[Gap]:
    """`place(name)`: where the script has made what it calls so."""
    found = []
    for name in engine.writer.no_way_in:
        if name == writer.KEPT_WORKERS:
            text = f"{name}: its workers' own state is not seen: no rank can be replaced"
            found.append(Gap("kept-workers", BARS, text, *_kept_at(engine, commit)))
        else:
            text = f"{name}: what it yields next cannot be captured: no rank can be replaced"
            found.append(Gap("iterator", BARS, text, *place(name)))
    return found


def sources_beyond_capture(state: HostState, changed: Iterable[str], lacking: Iterable[int]) -> list[Any]:
    """Return the iterators above what no other process can be given.

    `changed`: names of unknown objects that training changes. `lacking`: nodes of lists with such elements.
    """
    named = (state.places[name][0] for name in changed if name in state.places)
    found = {}
    for number in {*named, *lacking}:
        while number >= 0:
            obj = state.nodes[number].obj
            if hasattr(type(obj), "__next__"):
                found[id(obj)] = obj
            number = state.nodes[number].parent
    return [*found.values()]


def unseen_workers(engine: Engine, commit: BoundarySnapshot) -> list[Gap]:
    """Of loaders whose workers live on from one epoch to the next."""
    if writer.KEPT_WORKERS in engine.writer.no_way_in or not engine.draws.keeps_workers():
        return []
    kept = [(i, track) for i, track in engine.draws.tracks.items() if track.keeps_workers()]
    if all(kept_workers.are_seen(i) and track.mark is not None for i, track in kept):
        return []
    text = "a data loader with persistent_workers: from its second epoch on no rank can be replaced"
    return [Gap("kept-workers", BARS_LATER, text, *_kept_at(engine, commit))]


def fetched_ahead(engine: Engine) -> list[Gap]:
    """Of threads that fetch batches ahead: until it is known what they change, and what training does."""
    turns = engine.fetching
    threads = engine.trees.queues.threads
    if not engine.trees.queues.fillers():
        return []
    mixed = ", ".join(threads.mixed()[:3])
    until = ""
    if threads.is_cut:
        text = "a thread that fetches batches ahead works with too many objects to tell what it changes"
    elif turns.unknown:
        way = turns.unknown[0]
        text = f"{way.holder}.{way.name}: a thread that fetches batches ahead works with it, and who changes it is not known"
    elif mixed:
        text = f"{mixed}: a thread that fetches batches ahead changes it, and training does, or may"
    elif turns.has_told:
        return []
    elif turns.is_over:
        text = "a thread fetches batches ahead, and what it changes cannot be told from what training changes"
    else:
        text = (
            "a thread fetches batches ahead, and what it changes is told from what training changes within some steps"
        )
        until = " until then"
    return [Gap("fetched-ahead", BARS, f"{text}: no rank can be replaced{until}")]


def _kept_at(engine: Engine, commit: BoundarySnapshot) -> SourcePlace:
    for track in engine.draws.tracks.values():
        number = commit.state.index.get(id(track.loader))
        if number is not None and getattr(track.loader, "persistent_workers", False):
            node = commit.state.nodes[number]
            return where_made(commit.state, node.parent, node.key)
    return NOWHERE
