"""The protection report of a rank: which loop trains, what its protection costs, and every gap, with the line that makes it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch

from torchrelay.protocol.messages import Gap, Report
from torchrelay.protocol.names import ALONE, BARS, BEHIND_UPDATE, LEFT, PART_OF_STEP
from torchrelay.protocol.options.cost_limit import WINDOW_STEPS
from torchrelay.shim.adapters import dynamo
from torchrelay.shim.adapters.parallel import comm_hooks, ddp, fsdp1, wrappers
from torchrelay.shim.adapters.parallel.module_hooks import hook_counts
from torchrelay.shim.adapters.process_groups import process_group
from torchrelay.shim.capture.models import device, module_parts
from torchrelay.shim.capture.records import encode
from torchrelay.shim.capture.state.training_files import TrainingFiles
from torchrelay.shim.capture.values import large_arrays
from torchrelay.shim.capture.values.by_identity import ByIdentity
from torchrelay.shim.observe import built_wrappers, changed_data_sets, iterator_gaps, outer_gaps, report_notes
from torchrelay.shim.observe.built_wrappers import BuiltWrappers
from torchrelay.shim.observe.changed_bulk import ChangedBulk
from torchrelay.shim.observe.changed_texts import ChangedTexts
from torchrelay.shim.observe.device_holds import DeviceHolds
from torchrelay.shim.observe.lacking_elements import LackingElements
from torchrelay.shim.observe.origins import NOWHERE, SourcePlace, call_site, of_function, where_made
from torchrelay.shim.observe.process_wide_changes import ProcessWideChanges
from torchrelay.shim.observe.unseen_changes import UnseenChanges
from torchrelay.shim.script import sites

if TYPE_CHECKING:
    from torchrelay.shim.step.boundary_snapshot import BoundarySnapshot
    from torchrelay.shim.step.engine import Engine
    from torchrelay.shim.step.updates.late_reads import LateRead

_SET_UP_STEPS = 3
_LOOK_FOR_FILES = 256
"""In how many boundaries the files that set-up has read are looked for once."""
_BESIDE = (
    "collectives on another thread than the one that trains: if a rank is lost or moved while "
    "they are under way, they fail, and what they were for is not done"
)


class ProtectionReporter:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._said: tuple[Any, ...] | None = None
        self._key: tuple[Any, ...] | None = None
        self._fresh: Mapping[str, str] = {}
        self._astray: Gap | None = None
        self._late_forward: Gap | None = None
        self._own_result: Gap | None = None
        self._large_result: Gap | None = None
        self._replaced: Gap | None = None
        self._built = BuiltWrappers()
        self._wrappers_hooks: ByIdentity[int] = ByIdentity()
        """How many hooks each wrapper had at its first report."""
        self._unseen = UnseenChanges()
        self._bulk = ChangedBulk()
        self._texts = ChangedTexts()
        self._lacking = LackingElements()
        self._own_threads = changed_data_sets.OwnThreads(engine.trees.queues)
        self._steps_in_set_up = 0
        self._beside: Gap | None = None
        self._files_gone = 0
        self._behind: Gap | None = None
        self._read_late: Gap | None = None
        self._save: Gap | None = None
        self._evaluations: Gap | None = None
        self.reads_from_others: Gap | None = None
        self.store_changed: Gap | None = None
        self._goes_on: Gap | None = None
        self.holds = DeviceHolds()
        self._process_wide = ProcessWideChanges(engine.trees.settings.holds)

    # What the engine tells.

    def at_boundary(self, commit: BoundarySnapshot) -> None:
        """Report where something has changed that decides whether a rank can be replaced. Costs a comparison."""
        self._astray = None
        unknown = commit.state.unknown
        if unknown:
            self._unseen.look(commit.state, commit.boundary, self._engine.trees.arrays)
        if commit.state.bulk:
            self._bulk.look(commit.state, commit.boundary, commit.activation)
        self._lacking.look(commit.state, commit.boundary, self._outermost())
        self._engine.trees.led.want(
            iterator_gaps.sources_beyond_capture(commit.state, self._unseen.found, self._lacking.found)
        )
        if commit.boundary % _LOOK_FOR_FILES == 0 and self._engine.set_up is not None:
            self._files_gone = len(self._engine.set_up.gone())
        self._texts.look(time.monotonic())
        changes = self._engine.draws.data_changes
        self._own_threads.look(changes.changed.objects())
        settled = bool(self._engine.tracker.boundary_sites)
        keeper = self._engine.keeper
        key = (
            self._engine.writer.no_way_in,
            len(unknown),
            len(self._unseen.found),
            len(changes.changed),
            len(self._own_threads),
            iterator_gaps.fetched_ahead(self._engine),
            self._hooks_of_wrappers(),
            len(self._bulk.found),
            self._lacking.found,
            self._texts.found,
            settled,
            commit.activation.site,
            self._beside,
            self._save,
            self._evaluations,
            keeper.failed if keeper is not None else "",
            keeper is not None and keeper.size_bytes > 0,
            self._engine.writer.shape,
            len(self._engine.trees.changed),
            len(commit.state.roots),
            self._lacking_wrappers(commit),
            self._engine.draws.batches.written,
            self._engine.updates.writes.copied_bytes,
            self._engine.gradients.most_copied_bytes,
            self._engine.set_up is not None and self._engine.set_up.lost,
            self._files_gone,
            dynamo.compilations(),
            len(self.holds),
            self._process_wide.gaps(),
            len(self._engine.trees.files.too_large),
            len(self._engine.trees.files.kept_open),
        )
        told = (
            commit.boundary >= WINDOW_STEPS and commit.boundary.bit_count() == 1
        )  # now and then with what it costs by now
        if key != self._key or told:
            self._key = key
            self.report(commit, always=told)

    def at_gate(self, commit: BoundarySnapshot, fresh: Mapping[str, str]) -> None:
        """Report tensors that the step has made and reads after its optimizer step. `fresh`: why they are not in its journal."""
        if fresh != self._fresh:
            self._fresh = fresh
            self.report(commit)

    def in_turn(self) -> None:
        """Note that optimizers take turns in one iteration: from the next one on the gate is in front of the last of them."""
        self._key = None

    def step_in_another_loop(self, commit: BoundarySnapshot, site_key: str) -> None:
        site = sites.SITES[site_key]
        text = (
            f"a further training loop, {site.file}:{site.line}: a rank that is lost in its first iteration, before it is known "
            "to train, is not replaced"
        )
        self._astray = Gap("second-loop", BARS, text, site.file, site.line)
        self.report(commit)
        self._key = None

    def sharded_forward_late(self, commit: BoundarySnapshot, what: str) -> None:
        """Report that a sharded model has gathered its parameters after the optimizer step: a new process could not do it again."""
        if self._late_forward is None:
            self._late_forward = Gap(
                "sharded-forward", BEHIND_UPDATE, f"{what}: a rank that is lost in it is not replaced"
            )
            self.report(commit)

    def own_result_late(self, commit: BoundarySnapshot, name: str) -> None:
        if self._own_result is None:
            message = "send" in name or "recv" in name
            text = (
                f"{name} after the optimizer step, whose result other ranks do not have: a rank that is lost "
                f"{'between it and the next step' if message else 'in it'} is not replaced, if others have finished it"
            )
            self._own_result = Gap("own-result", BEHIND_UPDATE, text)
            self.report(commit)

    def large_result_late(self, commit: BoundarySnapshot, name: str) -> None:
        """Report a collective after the optimizer step whose results a new process cannot be given for sure."""
        if self._large_result is None:
            text = (
                f"{name} after the optimizer step, whose results are too large to be kept: a rank that is lost between it and the "
                "next step is not replaced, if others have finished it"
            )
            self._large_result = Gap("large-result", BEHIND_UPDATE, text)
            self.report(commit)

    def replaced_too_large(self, size_bytes: int) -> None:
        """Report a model that was made anew between two training loops: the old one is not kept beside it."""
        if self._replaced is None:
            text = (
                f"{size_bytes >> 20} MiB of tensors are made anew between two training loops, too much to be kept beside the new "
                "ones: a rank that is lost between the loops is not replaced, if others have come to the second one"
            )
            self._replaced = Gap("replaced-tensors", PART_OF_STEP, text)
            self._key = None

    def reads_late(self, read: LateRead) -> None:
        """Report that a step reads, after its update, a tensor that it writes to there."""
        if self._read_late is None:
            text = (
                f"the step reads {read.path}, which it writes to, after its optimizer step ({read.name}): a rank that is lost "
                "between its gate and the next step is not replaced, if others are through with their update"
            )
            self._read_late = Gap("late-read", BEHIND_UPDATE, text, *read.place)
            self._key = None

    def step_behind_loop(self, frame: FrameType) -> None:
        """Report an optimizer step that belongs to a loop that is over: what is left of an accumulation."""
        if self._behind is None:
            file, line = call_site(frame)
            text = (
                f"the optimizer step at {file}:{line}, behind the loop that its gradients were computed in: a rank that is lost "
                "between that loop's end and this step is not replaced"
            )
            self._behind = Gap("step-behind-loop", PART_OF_STEP, text, file, line)
            self._key = None

    def beside(self) -> None:
        """Note that another thread than the one that trains communicates."""
        if self._beside is None:
            self._beside = Gap("side-thread", PART_OF_STEP, _BESIDE)

    def save_not_carried(self, reason: str) -> None:
        """Note an async save that a new process could not go on with."""
        if self._save is None:
            text = (
                f"a checkpoint that a thread saves: if a rank is lost meanwhile, saving fails on all ranks ({reason})"
            )
            self._save = Gap("async-save", PART_OF_STEP, text)

    def evaluated_again(self, frame: FrameType) -> None:
        """Note that an optimizer has called its closure a second time in a step, between two writes to the parameters."""
        if self._evaluations is None:
            text = (
                "an optimizer, not torch's LBFGS, that calls its closure several times in a step: a rank that is lost after the "
                "first call and before the step is over is not replaced"
            )
            self._evaluations = Gap("closure", PART_OF_STEP, text, *call_site(frame))

    def others_are_read(self, frame: FrameType, what: str) -> None:
        """Note that a step takes in what a process or a thread of the script's own makes. `what`: in words."""
        file, line = call_site(frame)
        text = f"{file}:{line}: training reads {what}, whose state is not seen: no rank can be replaced"
        self.reads_from_others = Gap("other-process", BARS, text, file, line)
        self._key = None

    def store_is_changed(self, frame: FrameType, name: str) -> None:
        """Note that a step changes a store by the method of this name, which counts, or takes something out."""
        file, line = call_site(frame)
        what = f"training changes a store ({name}), and a step that is done again would do it twice"
        text = f"{file}:{line}: {what}: no rank can be replaced"
        self.store_changed = Gap("store", BARS, text, file, line)
        self._key = None

    def file_is_read_again(self, commit: BoundarySnapshot | None) -> None:
        """Report that a step is the first to write to a file that training reads: what it held before is in no journal."""
        self._key = None
        if commit is not None:
            self.report(commit)

    def collective_goes_on(self, place: SourcePlace) -> None:
        """Note that a collective which a step has begun (`async_op=True`) goes on when the next one begins."""
        if self._goes_on is None:
            file, line = place
            text = f"{file}:{line}: a collective is begun in one step and waited for in a later one: no rank can be replaced"
            self._goes_on = Gap("open-collective", BARS, text, file, line)
            self._key = None

    def step_in_set_up(self, frame: FrameType) -> None:
        """Note a step before any loop was seen.

        Loading a checkpoint steps once or twice; a script that steps again trains there.
        """
        self._steps_in_set_up += 1
        if self._steps_in_set_up == _SET_UP_STEPS:
            self.step_in_no_loop(frame)

    def step_in_no_loop(self, frame: FrameType) -> None:
        """Report that an optimizer is stepped in no loop that is seen, such as one of a framework."""
        if self._said is not None:
            return
        file, line = call_site(frame)
        self._said = (file, line)
        why = f"the optimizer step at {file}:{line} is in no loop of the script's own files: no rank can be replaced"
        gap = Gap("no-loop", BARS, why, file, line)
        self._engine.link.send(Report(file, line, 0, 0, 0, (why,), (), (gap,)))

    def ddp_built(self, wrapped: torch.nn.parallel.DistributedDataParallel, frame: FrameType) -> None:
        self._built.add(wrapped, frame, self._engine.tracker.stack)

    # The report.

    def report(self, commit: BoundarySnapshot, *, always: bool = False) -> None:
        """Send the report when it says something new, or `always`."""
        engine = self._engine
        site = sites.SITES[commit.activation.site]
        tensors = device.catalogue(commit.state, commit.state.roots)
        size = sum(t.numel() * t.element_size() for t in tensors.values())
        gaps = tuple(self.gaps(commit))
        notes = report_notes.notes(engine, commit, self._bulk.found)
        settled = bool(engine.tracker.boundary_sites)
        shape = engine.writer.shape
        copies = self._copies()
        has_copy = copies[1] > 0
        says = (site.file, site.line, settled, size, len(tensors), gaps, notes, shape, has_copy)
        if says == self._said and not always:
            return
        self._said = says
        head_s, gate_s, barrier_s = engine.costs.take()
        engine.link.send(
            Report(
                site.file,
                site.line,
                size,
                engine.writer.last_bytes,
                len(tensors),
                tuple(gap.text for gap in gaps),
                notes,
                gaps,
                commit.boundary,
                settled,
                head_s,
                gate_s,
                barrier_s,
                engine.journal.allocated_bytes,
                *copies,
                shape,
                process_group.default_timeout_s(),
                *engine.budget.shares(),
                engine.protection,
            )
        )

    def _copies(self) -> tuple[int, int, float, str]:
        keeper = self._engine.keeper
        return (
            (keeper.every, keeper.size_bytes, keeper.cost_s, keeper.failed) if keeper is not None else (0, 0, 0.0, "")
        )

    def gaps(self, commit: BoundarySnapshot) -> list[Gap]:
        seen = (
            self._astray,
            self._late_forward,
            self._own_result,
            self._large_result,
            self._replaced,
            self._beside,
            self._behind,
            self._read_late,
            self._save,
            self._evaluations,
            self.reads_from_others,
            self.store_changed,
            self._goes_on,
        )
        found = [gap for gap in seen if gap is not None]
        found += self._texts.gaps() + self.holds.gaps() + self._wrappers() + outer_gaps.outside(self._engine.set_up)
        keeper = self._engine.keeper
        if keeper is None or not keeper.is_on:  # new processes have nothing to put back
            found += [Gap("fsdp1", ALONE, text) for text in fsdp1.limits(commit.state.roots)]
        found += [
            Gap(
                "fsdp1",
                BARS,
                f"{name}: a tensor in an attribute of FullyShardedDataParallel's parameters: no rank can be replaced",
            )
            for name in wrappers.kept_beside_flat(commit.state.roots)
        ]
        found += [
            Gap("spread", BARS, f"{name}: spread over ranks otherwise than its parameter: no rank can be replaced")
            for name in device.not_rebuilt(commit.state)
        ]
        found += built_wrappers.gaps(self._lacking_wrappers(commit)) + self._changed_models(commit)
        found += _files(self._engine.trees.files)
        found += outer_gaps.compiled() + self._process_wide.gaps()
        found += iterator_gaps.no_way_in(self._engine, commit, lambda name: self._place(commit, name))
        found += self._lacking.gaps(commit.state, commit.boundary, self._outermost()) + self._unknown(commit)
        changes = self._engine.draws.data_changes
        found += changed_data_sets.gaps(commit.state, changes, self._bulk, self._own_threads)
        found += iterator_gaps.unseen_workers(self._engine, commit) + iterator_gaps.fetched_ahead(self._engine)
        found += [
            Gap(
                "large-fresh-tensor",
                BEHIND_UPDATE,
                f"{name}: read after the optimizer step and {why}; "
                "a rank that is lost between its gate and the next step cannot be restored",
            )
            for name, why in self._fresh.items()
        ]
        return found

    def _hooks_of_wrappers(self) -> tuple[int, ...]:
        """Return how many hooks the wrappers themselves have: they belong to no model, and are made anew."""
        return tuple(sum(hook_counts([("", wrapped)]).values()) for wrapped in self._engine.wrapped)

    def _wrappers(self) -> list[Gap]:
        found = []
        for wrapped, number in zip(self._engine.wrapped, self._hooks_of_wrappers()):
            first = self._wrappers_hooks.get(wrapped)
            if first is None:
                self._wrappers_hooks.put(wrapped, number)
            elif number != first:
                text = "training has registered or removed a hook of a DistributedDataParallel itself: no rank can be replaced"
                found.append(Gap("hook", BARS, text, *self._built.place(wrapped)))
            reason = ddp.why_not_carried(wrapped)
            if reason:
                hooks = comm_hooks.of(wrapped)
                place = of_function(hooks[-1]) if hooks else NOWHERE
                if place.file not in sites.INSTRUMENTED_FILES:
                    place = self._built.place(wrapped)
                found.append(Gap("ddp", BARS, f"{reason}: no rank can be replaced", *place))
        return found

    def _outermost(self) -> tuple[str, int]:
        """Return the outermost training loop, and which run of it this is."""
        outermost = self._engine.tracker.stack[0]
        return outermost.site, outermost.entry

    def _lacking_wrappers(self, commit: BoundarySnapshot) -> list[SourcePlace]:
        return self._built.lacking(commit.state, commit.activation, self._engine.tracker.stack)

    def _changed_models(self, commit: BoundarySnapshot) -> list[Gap]:
        state = commit.state
        found = []
        for root in state.roots:
            number = state.index[id(root)]
            node = state.nodes[number]
            tree = node.content.tree
            for module in encode.Encoder(state).hooks_lost(tree) if tree.hooks_of_training() else ():
                name = ".".join(filter(None, (state.path(number), module)))
                text = (
                    f"{name}: training has registered a hook there that cannot be made again: no rank can be replaced"
                )
                found.append(Gap("hook", BARS, text, *where_made(state, node.parent, node.key)))
            is_new = tree.of_set_up is None and not tree.is_bare()
            if not is_new and id(root) not in self._engine.trees.changed:
                continue
            lacking = module_parts.cannot_be_made(encode.Encoder(state), tree, node.content.values, number)
            if lacking:
                name = ".".join(filter(None, (state.path(number), lacking[0])))
                text = f"{name}: training has put a module there that cannot be made again: no rank can be replaced"
                found.append(Gap("modules", BARS, text, *where_made(state, node.parent, node.key)))
        return found

    def _unknown(self, commit: BoundarySnapshot) -> list[Gap]:
        iterators = {name for name, _ in commit.state.iterators}
        found = []
        for name in dict.fromkeys(commit.state.unknown):
            changes = self._unseen.found.get(name)
            if name not in iterators and (changes or not name.endswith(large_arrays.READ_ONLY)):
                kind = "array" if " array " in name else "object"
                why = f", and {changes}: no rank can be replaced" if changes else ""
                text = f"{name}: its state cannot be captured{why}"
                found.append(Gap(kind, BARS if changes else LEFT, text, *self._place(commit, name)))
        return found

    def _place(self, commit: BoundarySnapshot, name: str) -> SourcePlace:
        known = commit.state.places.get(name)
        return where_made(commit.state, *known) if known is not None else NOWHERE


def _files(files: TrainingFiles) -> list[Gap]:
    """Of files that training writes and reads again."""
    found = [
        Gap(
            "file",
            BARS,
            f"{path}: training writes and reads it, and it is too large to be carried: no rank can be replaced",
        )
        for path in files.too_large
    ]
    found += [
        Gap("file", BARS, f"{name}: training keeps it open, and writes to it and reads it: no rank can be replaced")
        for name in sorted(files.kept_open)
    ]
    if files.is_new:
        text = "a step is the first to write to a file that training reads: no rank can be replaced until the next step"
        found.append(Gap("file", BARS, text))
    return found
