"""Writes a rank's journal: the set-up, each boundary, each gate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType
from typing import TYPE_CHECKING, Any

from torchrelay.shim import payload, sites
from torchrelay.shim.capture import rng
from torchrelay.shim.capture.encode import encode, pickled, tree_base
from torchrelay.shim.capture.host_state import HostState
from torchrelay.shim.capture.kinds import Kind
from torchrelay.shim.capture.rewalk import Restart, Rewalk
from torchrelay.shim.capture.walk import Walk
from torchrelay.shim.loops import Activation, plain_range

if TYPE_CHECKING:
    from torchrelay.shim.commit import Commit
    from torchrelay.shim.engine import Engine


KEPT_WORKERS = "a data loader with persistent_workers after its first epoch"


def script_frames(innermost: FrameType | None) -> list[FrameType]:
    """Frames of rewritten files, outermost first."""
    found = []
    frame = innermost
    while frame is not None:
        if frame.f_code.co_filename in sites.INSTRUMENTED_FILES:
            found.append(frame)
        frame = frame.f_back
    return found[::-1]


class ScriptModules:
    """Namespaces of the script's own modules; looked up again only when modules were imported."""

    def __init__(self) -> None:
        self._seen = 0
        self._found: dict[str, dict[str, Any]] = {}

    def namespaces(self) -> dict[str, dict[str, Any]]:
        if self._seen != len(sys.modules):
            self._seen = len(sys.modules)
            modules = list(sys.modules.items())
            self._found = {
                name: vars(module)
                for name, module in modules
                if getattr(module, "__file__", None) in sites.INSTRUMENTED_FILES - sites.PACKAGES
                and name != "__mp_main__"
            }
        return self._found


class Writer:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.modules = ScriptModules()
        self._set_up: tuple[str, int] | None = None
        self.no_way_in: tuple[str, ...] = ()
        """What is at the latest boundary that a joiner could not be led to."""
        self.last_bytes = 0
        self.latest = b"", b""
        """The latest boundary's journal, and the recording of the set-up that it goes with."""

    def walk(self, frames: Sequence[FrameType], base: HostState | None = None, *, at_gate: bool = False) -> HostState:
        """`base`: the state at the latest boundary, which most of this one will be equal to."""
        trees, namespaces = self._engine.trees, self.modules.namespaces()
        if base is not None:
            try:
                return Rewalk(trees, base, at_gate=at_gate).run(frames, namespaces)
            except Restart:
                pass
        return Walk(trees, base if at_gate else None).run(frames, namespaces)

    def head(self, activation: Activation) -> bytes:
        """Host state at the head of an outer loop, for joiners that pass it on their way in."""
        return pickled(payload.HeadState(encode(self.walk(script_frames(activation.frame))), rng.capture()))

    def boundary(self, commit: Commit) -> None:
        stack = self._engine.tracker.stack
        links = stack[: stack.index(commit.activation) + 1]
        outermost = (links[0].site, links[0].entry)
        if self._set_up != outermost:
            self._set_up = outermost
            collectives = tuple(self._engine.records.log[: links[0].first_mark])
            contents = [node.content for node in commit.state.nodes if node.kind is Kind.MODULE]
            trees = tuple(tree_base(content) for content in contents)
            set_up = pickled(payload.SetUpJournal(*outermost, collectives, trees))
            self.latest = b"", set_up
            self._engine.journal.write_set_up(set_up)
            for place, content in enumerate(contents):
                content.tree.base, content.tree.base_place = content, place
            for node in commit.state.nodes:
                if node.kind is Kind.MODULE:
                    node.written = b""  # it was the difference to the set-up before
        records = [self._link(depth, links) for depth in range(len(links))]
        in_loops = {id(iterator) for link in links for iterator in link.loaders}
        loaders = {}
        for number, node in enumerate(commit.state.nodes):
            if node.kind is Kind.LOADER_ITER and id(node.obj) not in in_loops:
                drawn = self._engine.draws.record(node.obj)
                if drawn is not None:
                    loader = self._engine.draws.tracks[node.obj].loader
                    loaders[number] = replace(drawn, loader=commit.state.index.get(id(loader), -1))
        nodes = encode(commit.state)
        settled = self._engine.tracker.boundary_site is not None
        if not settled:
            commit.activation.head = pickled(payload.HeadState(nodes, commit.rng))
        self.no_way_in = self._iterators(commit)
        record = payload.BoundaryJournal(
            commit.boundary,
            settled,
            records,
            nodes,
            commit.rng,
            tuple(commit.state.large),
            loaders,
            self.no_way_in,
        )
        data = pickled(record)
        self._engine.journal.write_boundary(commit.boundary, data)
        self.last_bytes, self.latest = len(data), (data, self.latest[1])

    def _iterators(self, commit: Commit) -> tuple[str, ...]:
        """Iterators that a joiner cannot lead to their place. A running loop's own is led there by the loop."""
        stack = self._engine.tracker.stack
        of_loops = {id(activation.iterator) for activation in stack}
        found = tuple(name for name, iterator in commit.state.iterators if id(iterator) not in of_loops)
        loaders = {id(iterator) for activation in stack for iterator in activation.loaders}
        return (*found, KEPT_WORKERS) if self._engine.draws.kept_workers(loaders) else found

    def _link(self, depth: int, links: list[Activation]) -> payload.LinkRecord:
        link = links[depth]
        start = links[depth - 1].first_mark if depth else link.first_mark
        position = plain_range(link.iterator)
        records = [self._engine.draws.record(iterator) for iterator in link.loaders]
        return payload.LinkRecord(
            site=link.site,
            entry=link.entry,
            heads=link.heads,
            entry_rng=link.rng,
            item=link.item if position is not None else None,
            iterator=position,
            loaders=tuple(r for r in records if r is not None),
            head=link.head if depth < len(links) - 1 else b"",
            prologue=tuple(self._engine.records.log[start : link.first_mark]),
        )

    def gate(self, commit: Commit, frame: FrameType) -> None:
        """What only this rank knows of the step."""
        engine = self._engine
        body = tuple(engine.records.log[engine.records.body_mark :])
        state = self.walk(script_frames(frame), commit.state, at_gate=True)
        fresh = tuple(sorted(path for path, t in state.large.items() if id(t) not in commit.state.index))
        before, written = commit.state.nodes, encode(state)
        changed = {
            n: written[n]
            for n, node in enumerate(state.nodes)
            if n >= len(before) or node is not before[n] or not node.written
        }
        record = payload.GateJournal(commit.boundary, len(written), changed, rng.capture(), body, fresh)
        engine.journal.write_gate(commit.boundary, pickled(record))
        engine.reporter.at_gate(commit, fresh)
