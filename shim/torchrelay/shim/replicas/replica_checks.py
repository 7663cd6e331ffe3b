"""Take digests of the device state now and then at boundaries: a rank that holds the same bytes can stand in for a lost one.

All ranks check at the same boundaries: at the first ones, at powers of two, then every 1024 steps, and one step behind each of
these, so that the cost fades. Each training loop of the script starts this anew, since it can have tensors of its own. So does a
model that takes another one's turn: tensors are named by the order in which their models are come across. Two ranks that were equal
at a checked boundary and passed the same gates since still are. One boundary can be told of twice, where a loop without a further
step ends and the next one begins: each report says its place, so that ranks are compared at the same one.
"""

from __future__ import annotations

import dataclasses
import hashlib
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from torchrelay.protocol.messages import ReplicaCheck
from torchrelay.shim.adapters.process_groups.process_group import group_ranks
from torchrelay.shim.adapters.tensors.dtensor import replica_ranks
from torchrelay.shim.capture.models import device
from torchrelay.shim.capture.models.modules import TreeContent
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.replicas.first_writes import FirstWrites, Unproven
from torchrelay.shim.replicas.names_told import NamesTold
from torchrelay.shim.tensors import digest

if TYPE_CHECKING:
    from torchrelay.shim.journal.payload import BoundaryJournal
    from torchrelay.shim.step.boundary_snapshot import BoundarySnapshot
    from torchrelay.shim.step.engine import Engine

_EVERY = 1024
_LOOKS_AFTER = 16
"""For so many steps after a migration, ranks are compared after 1, 2, 4, ... steps: an error in the migration shows at once."""
_HASTE_BYTES = 4 << 30
"""The most bytes in host memory that are read while all ranks wait for a commit: that takes about a second."""


def is_due(boundary: int) -> bool:
    """Return whether a check is due at this boundary: at certain ones, and at each boundary right behind one of them.

    Ranks that average every so many steps are equal at one of the two at most.
    """
    return _is_mark(boundary) or _is_mark(boundary - 1)


def _is_mark(boundary: int) -> bool:
    return boundary % _EVERY == 0 or boundary & (boundary - 1) == 0


Models = tuple[tuple[int, "weakref.ref[torch.nn.Module]"], ...]
"""Number and identity of the models that the names of tensors mean. A new model at a lost one's address is not the same."""


@dataclass(frozen=True, eq=False)
class _Course:
    """What holds at a boundary: its loop, which models the names of tensors mean, and since when comparisons count.

    `settled`: whether this is the loop that trains. In a run's first step the outermost loop stands in for it.
    """

    loop: tuple[str, int, str] | None = None
    models: Models = ()
    since: int = 0
    settled: bool = False

    def then(self, boundary: int, loop: tuple[str, int, str], models: Models, *, settled: bool) -> _Course:
        """Return the course of the boundary behind this one."""
        same = loop == self.loop and _are_the_same(models, self.models)
        anew = self.loop is not None and self.settled and not same
        return _Course(loop, models, boundary if anew else self.since, settled)


class ReplicaChecks:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._now = _Course()
        self._before = _Course()
        """The course of the latest boundary, and of the latest one with another number: a loop without a step leaves no trace."""
        self._latest = -1
        self._told = -1
        """The boundary that was reported last. If it is taken anew, in another loop, the report holds no more."""
        self._migrated = -1
        """The boundary of the latest migration."""
        self.first_writes = FirstWrites()
        self._names = NamesTold()
        self._values: frozenset[str] = frozenset()
        """What stood beside models, and was large, in the latest report."""
        self._next_without = 0
        self._wait = 1
        """From which boundary on a report follows one whose values are gone, and how long the one behind that has to wait."""
        self.every = 0
        """Boundaries that are multiples of this are checked too, if it is not 0."""

    def tensors(self, commit: BoundarySnapshot) -> dict[str, torch.Tensor]:
        """Return the device state at the boundary, with the gradients that are part of it."""
        return device.catalogue(commit.state, commit.state.roots, as_taken=True) | self._engine.gradients.tensors()

    def to_give(self, commit: BoundarySnapshot, target: int) -> dict[str, torch.Tensor]:
        """Return the tensors that a joiner needs from a donor. `target`: the boundary that all meet at."""
        if target > commit.boundary:
            state = device.after_update(commit.state)
            return device.catalogue(state, state.roots) | self._engine.gradients.tensors_now()
        # Before the update a donor serves while it is still in the step, which may have bound other tensors.
        tensors = device.catalogue(commit.state, commit.state.roots, as_taken=True)
        return tensors | device.recorded_buffers(commit.state) | self._engine.gradients.to_give()

    @property
    def since(self) -> int:
        """Return from which boundary on names of tensors mean what they mean now."""
        return self._now.since

    def take_over(self, journal: BoundaryJournal) -> None:
        """Go on as the lost rank would have."""
        self._now = _Course(since=journal.since)
        self.first_writes.take_over(journal.unproven, journal.quiet)

    def before_journal(self, commit: BoundarySnapshot) -> None:
        """Note which loop the boundary is of, and notice what the latest step has written for the first time."""
        if commit.boundary != self._latest:
            self._latest = commit.boundary
            self._before = self._now
        outermost = self._engine.tracker.stack[0]
        innermost = commit.activation
        loop = outermost.site, outermost.entry, innermost.site
        settled = bool(self._engine.tracker.boundary_sites)
        self._now = self._before.then(commit.boundary, loop, _models(commit.state), settled=settled)
        self.first_writes.at_boundary(commit.state, commit.boundary, lambda: self._kept_paths(commit))

    def unproven_at_gate(self, commit: BoundarySnapshot) -> Unproven:
        """Return as FirstWrites.at_gate, for the step that began at this boundary."""
        return self.first_writes.at_gate(commit.boundary + 1, lambda: self._kept_paths(commit))

    def _kept_paths(self, commit: BoundarySnapshot) -> list[str]:
        paths = device.kept_paths(commit.state.roots, commit.state, self._kept(commit))
        return [path.partition("@")[0] for path in paths if "@=" not in path]

    def at_boundary(self, commit: BoundarySnapshot) -> None:
        asked = self.every and commit.boundary % self.every == 0
        due = (
            self._engine.gradients.changed
            or asked
            or (self._engine.own is not None and self._engine.own.changed)
            or self.first_writes.asks
            or self._is_without(commit)
            or is_due(commit.boundary)
            or is_due(commit.boundary - self._now.since)
            or self._looks_after(commit)
            or commit.boundary == self._told
        )
        if not due or self._engine.shadow is not None:
            return
        self._send(commit)
        if is_due(commit.boundary) or self._looks_after(commit):  # here all ranks do
            self.first_writes.compared()
        self._engine.reporter.report(commit, always=True)  # with what steps cost by now

    def _is_without(self, commit: BoundarySnapshot) -> bool:
        """Return whether a large value of the latest report is gone, or small: ranks that differed in it may be alike by now."""
        if commit.boundary < self._next_without or self._values <= commit.state.large.keys():
            return False
        self._next_without = commit.boundary + self._wait
        self._wait *= 2
        return True

    def _looks_after(self, commit: BoundarySnapshot) -> bool:
        steps = commit.boundary - self._migrated
        return self._migrated >= 0 and 0 < steps <= _LOOKS_AFTER and _is_mark(steps)

    def migrated(self, target: int) -> None:
        """Note that a migration was committed: its ranks go on from this boundary."""
        self._migrated = target

    def before_commit(self, commit: BoundarySnapshot, target: int) -> None:
        """Let the controller compare ranks that stand at the boundary where all meet, before it lets them go on."""
        if commit.boundary != target or not self._engine.capturing:
            return
        on_host = [tensor for tensor in self.tensors(commit).values() if tensor.is_cpu]
        if sum(tensor.numel() * tensor.element_size() for tensor in on_host) <= _HASTE_BYTES:
            self._send(commit)

    def _send(self, commit: BoundarySnapshot) -> None:
        self._told = commit.boundary
        self._values = frozenset(commit.state.large)
        whole = device.whole(commit.state, commit.state.roots, as_taken=True)
        tensors = device.parts(whole) | self._engine.gradients.tensors()
        digests = digest.digests(tensors)
        derived = device.derived(tensors)
        paths = device.kept_paths(commit.state.roots, commit.state, self._kept(commit))
        carried = self._engine.own.carried if self._engine.own is not None else ()
        small = small_buffers(commit.state)
        since = self._now.since
        told = ReplicaCheck(commit.boundary, digests, tuple(paths), since, small, carried, commit.place, derived)
        if since == commit.boundary:
            renamed = self._names.of_loop_before(whole, since)
            fresh = tuple(path for path in digests if path not in renamed)
            others = {path: then for path, then in renamed.items() if then != path}
            told = dataclasses.replace(told, fresh=fresh, renamed=others)
        self._names.told(whole, commit.boundary)
        self._engine.link.send(told)
        self._engine.journal.told(told)

    def not_averaged(self) -> tuple[str, ...]:
        """Return the paths that a wrapper would keep equal, had the latest update not gone past it. See `messages.Standing`."""
        commit = self._engine.commit
        bypassed = self._engine.layouts.bypassed
        if commit is None or not bypassed:
            return ()
        kept = {id(parameter): "" for wrapped in bypassed for parameter in wrapped.module.parameters()}
        return tuple(device.kept_paths(commit.state.roots, commit.state, kept))

    def _kept(self, commit: BoundarySnapshot) -> dict[int, str]:
        """Return the ids of parameters that are the same on some ranks by construction, with these ranks.

        The ranks are written as in `ReplicaCheck.ddp_paths`.
        """
        kept = {}
        for root in commit.state.roots:
            for parameter in root.parameters():
                ranks = replica_ranks(parameter)
                if len(ranks) > 1:
                    kept[id(parameter)] = f"@={','.join(map(str, ranks))}"
        for wrapped in self._engine.wrapped:
            ranks = group_ranks(wrapped.process_group)
            among = "" if len(ranks) == self._engine.world_size else f"@{','.join(map(str, ranks))}"
            kept.update((id(parameter), among) for parameter in wrapped.module.parameters())
        return kept


def _models(state: HostState) -> Models:
    """Return number and identity of each model."""
    contents = enumerate(_contents(state))
    return tuple((number, weakref.ref(content.tree.root)) for number, content in contents if not content.tree.is_bare())


def _are_the_same(ours: Models, theirs: Models) -> bool:
    pairs = zip(ours, theirs)
    return len(ours) == len(theirs) and all(n == m and a() is not None and a() is b() for (n, a), (m, b) in pairs)


def _contents(state: HostState) -> list[TreeContent]:
    """Return the contents of the models, in the order of their nodes."""
    return [state.nodes[state.index[id(root)]].content for root in state.roots]


def small_buffers(state: HostState) -> dict[str, str]:
    """Return digests of the buffers that go with the journal, by the number of their model and their name."""
    return {
        f"buffer{number}.{name}": hashlib.blake2b(value.data, digest_size=8).hexdigest()
        for number, content in enumerate(_contents(state))
        for name, value in content.buffers.items()
    }
