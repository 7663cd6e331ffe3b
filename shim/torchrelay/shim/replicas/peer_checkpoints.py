"""Copy the whole state to host memory, now and then, at boundaries.

A job goes back to the copies where no other rank holds what a lost rank had.

The tensors are copied on the training thread, so they are of one moment, and the copy is whole then. Digests are taken, and a buddy
is given the copy, beside training. What is beside the tensors is written on the training thread if it is small. A copy lies in
shared memory, so it outlives the process, and the rank itself starts over from it. Two are kept: while one is written, the other is
whole. Where the steps between two copies are given, a rank passes the last gate before its next copy only when the latest one is
whole. So a rank that overwrites an older copy knows that all ranks have the newer one.

Copies as needed begin once it is known that some rank needs them, which ranks hear at different steps. So they agree in the gate: a
rank that wants a copy says so there, and a rank whose latest copy is not whole yet says that too. At the next head either all make
one or none does. The first one is wanted at once, the others as often as the controller says, once it knows how long a step takes.
A small state is copied from the first step on, for losses before all that is known.

With `--buddy-sync` all of a copy is made at the head, and the ranks meet there: none begins the step before the copies of all are
whole. So a loss never costs more than the steps since the latest head with copies.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from torchrelay.protocol.errors import JournalError, TorchrelayError
from torchrelay.protocol.journals.kept import COPIES_AS_NEEDED, SLOTS, KeptParts, Slots, own_folder, write_parts
from torchrelay.protocol.messages import KeepCopies, TakeCopy
from torchrelay.protocol.words.positions import StandingPosition
from torchrelay.shim.replicas.kept_tensors import KeptTensors
from torchrelay.shim.replicas.peer_exchange import Giver, Taker

if TYPE_CHECKING:
    from torchrelay.shim.step.boundary_snapshot import BoundarySnapshot
    from torchrelay.shim.step.engine import Engine


MEETING_S = 30.0
"""How long a rank waits at a head for the others' copies: a rank that never comes to this head would keep it for ever."""
EARLY_BYTES = 64 << 20
EARLY_STEPS = 3
"""A state of so many bytes is copied in these steps before it is known who holds the same, and then, where that is needed, at each
head until it is known how often."""
SMALL_PARTS_BYTES = 1 << 20
"""The most bytes of a copy's journal and set-up that count as small: they are written in about a millisecond."""
_SIGN_OF_LIFE_S = 0.5
"""How often a rank that waits for a buddy at a gate says so: it does not hang, and must not be taken for a rank that does."""


class PeerCheckpoints:
    """Copy this rank's state when it is due, and exchange copies with buddies.

    `every`: steps between two copies, or COPIES_AS_NEEDED. `folder`: this node's, see `protocol.kept`. `sync`: as `--buddy-sync`
    says.
    """

    def __init__(self, engine: Engine, every: int, folder: Path, *, sync: bool = False) -> None:
        self._engine = engine
        self._folder = folder
        self.every = max(every, 0)
        """Steps between two copies; 0 as long as the controller has not said how often copies are needed."""
        self._as_needed = every == COPIES_AS_NEEDED
        self._told_every = 0
        self._sync = self._meets = sync
        self._met = 0
        """The turn, as in `_turn`, of the latest head at which all ranks have met."""
        self._on = True
        """Whether copies are made. They are as long as it is not known whether other ranks hold the same."""
        self._is_told = not self._as_needed
        self._is_small = False
        self._giver = Giver(engine.link, engine.comms.address, engine.protection, engine.log)
        self._taker = Taker(engine.link, folder, engine.protection)
        self._slots = Slots(own_folder(folder, engine.rank))
        self._tensors: dict[Path, KeptTensors] = {}
        self._turn: int | None = None
        self._latest = max(self._slots.boundaries(), default=-1)
        """The boundary of the latest copy, whether it went well or not."""
        self._agreed = False
        """Whether all ranks make a copy at the next head."""
        self._is_untold = False
        """Whether a copy was made because others wanted it, and the controller has not said yet that this rank keeps copies."""
        self._finishing: threading.Thread | None = None
        self._needs_thread = True
        """Whether the latest copy is of no use before that thread is done: it is not whole yet, or goes to a buddy."""
        self._hurry = threading.Event()
        """Set when the next copy is due: the digests of the latest one are left out then."""
        self.size_bytes = 0
        self._copied_s = 0.0
        self._waited_s = 0.0
        self._copies = 0
        self.failed = ""
        """Why the latest copy could not be made."""

    # On the link's thread.

    def assign(self, order: KeepCopies) -> None:
        if self._as_needed and order.every > 0:
            self._told_every = order.every
        self._on = order.on
        self._giver.peer_host = order.buddy_host
        self._is_untold = False
        self._is_told = True

    def take(self, order: TakeCopy) -> None:
        self._taker.take(order)

    def interrupted(self, generation: int) -> None:
        """Stop giving copies, since a migration to `generation` begins: the buddy may be the rank that is lost."""
        self._giver.pause(generation)

    # On the training thread.

    def close(self) -> None:
        """End all threads that compute: one that is left would be torn in the interpreter's end."""
        self._giver.close()
        self.wait()
        self._taker.close()

    @property
    def is_on(self) -> bool:
        """Return whether it is known that copies are needed."""
        return self._on and self._is_told

    @property
    def cost_s(self) -> float:
        """Return how much of the training thread's time a copy takes, on average."""
        return (self._copied_s + self._waited_s) / self._copies if self._copies else 0.0

    @property
    def memory_bytes(self) -> int:
        return SLOTS * self.size_bytes

    def at_boundary(self, commit: BoundarySnapshot) -> None:
        self.every = self._told_every or self.every
        if not self._is_told and commit.boundary < EARLY_STEPS:
            self._is_small = self._needed_bytes(commit) <= EARLY_BYTES
        due = self._is_agreed() if self._as_needed else self._is_its_turn(commit.boundary)
        if not due or self._engine.shadow is not None:
            if not self._on and not self._is_untold:
                self._drop()
            return
        self._is_untold = not self._on
        self._latest = commit.boundary
        if not self._needs_thread:
            self._hurry.set()
        self.wait()
        self._hurry.clear()
        started_s = time.perf_counter()
        try:
            self._copy(commit)
        except (OSError, TorchrelayError, RuntimeError) as e:
            self._fail(commit.boundary, e)
        self._copied_s = self._copied_s + time.perf_counter() - started_s
        self._copies = self._copies + 1

    def _is_its_turn(self, boundary: int) -> bool:
        """Return whether a copy is made at this head, where the steps between two copies are given."""
        turn = boundary // self.every
        is_first = self._turn is None
        # Until the training loop is known, more than one head can be the one of boundary 0: the last one counts.
        due = boundary % self.every == 0 if is_first else turn != self._turn or boundary == self._latest
        self._turn = turn
        is_there = is_first and boundary in self._slots.boundaries()  # this process has just entered from it
        return due and self._on and not is_there

    def _is_agreed(self) -> bool:
        agreed = self._agreed
        self._agreed = False
        return agreed

    def asks(self, boundary: int) -> tuple[bool, bool]:
        """Return whether a copy is wanted at the head of `boundary`, and whether the latest one is still being made.

        Called in the gate before that head.
        """
        if not self._as_needed:
            return False, False
        every = self._told_every or self.every or int(self._is_small)
        due = self._latest < 0 or (every > 0 and boundary // every != self._latest // every)
        wanted = self._on if self._is_told else self._is_small and boundary <= EARLY_STEPS
        return wanted and due, self._needs_thread and self._finishing is not None and self._finishing.is_alive()

    def agreed(self, yes: bool) -> None:
        """Take what all ranks have agreed on in that gate: whether they make a copy at the next head."""
        self._agreed = yes

    def entered(self, generation: int, boundary: int, *, from_copy: bool = False) -> None:
        """Go on from `boundary`, as all ranks do. They need not meet there.

        `from_copy`: this rank has come from its copy of `boundary`. Else a copy of `boundary`, or of a later one, is dropped: not
        all ranks have one, since some were not through the gate before it.
        """
        self._met = boundary // self.every if self.every else 0
        self._meets = self._sync
        self._agreed = False
        self.wait()
        try:
            self._slots.forget(boundary if from_copy else boundary - 1)
        except OSError as e:
            self._fail(boundary, e)
        self._latest = max(self._slots.boundaries(), default=-1)
        self._giver.resume(generation)

    def abandoned(self, generation: int) -> None:
        self._giver.resume(generation)

    def meet(self, patience_s: float | None = None) -> None:
        """Wait for the other ranks' copies of this head, once. Raises RuntimeError when the generation is broken.

        It is called before each gate as well, also by ranks that take no boundaries: all meet between the same two gates.
        """
        if not self._meets or not self.every:
            return
        engine = self._engine
        turn = self._engine.step.gates_passed // self.every
        if turn <= self._met:
            return
        started_s = time.perf_counter()
        engine.waiting(True)
        try:
            wanted = engine.comms.meet(turn, self._on, patience_s)
        finally:
            engine.waiting(False)
            self._waited_s += time.perf_counter() - started_s
        if wanted is not None:
            self._met = turn
            self._meets = wanted

    def meet_at_head(self) -> None:
        try:
            self.meet(MEETING_S)
        except RuntimeError as error:
            self._engine.recovery.stand(StandingPosition.HEAD, error)

    def at_gate(self, boundary: int) -> None:
        """Wait for the latest copy in the last gate before the next one. `boundary`: where the gate's step starts."""
        if self._as_needed:
            return  # it says that it is busy
        if self._finishing is not None and (boundary + 1) // self.every != boundary // self.every:
            started_s = time.perf_counter()
            while self._finishing.is_alive():
                self._finishing.join(_SIGN_OF_LIFE_S)
                if self._giver.waits:
                    self._engine.alive()
            self._finishing = None
            self._waited_s += time.perf_counter() - started_s

    def wait(self) -> None:
        """Return when the latest copy is whole, or has failed."""
        if self._finishing is not None:
            self._finishing.join()
            self._finishing = None

    def _drop(self) -> None:
        """Give the memory of the copies back to the system: other ranks hold the same by now."""
        if self._tensors:
            self.wait()
            self._slots.drop()
            self._tensors.clear()
            self.size_bytes = 0
            self._latest = -1
            self._taker.drop()

    def _copy(self, commit: BoundarySnapshot) -> None:
        engine = self._engine
        journal, set_up = engine.writer.latest
        parts = KeptParts(commit.boundary, b"".join(journal), set_up, engine.layouts.as_text(commit.boundary))
        slot = self._slots.open(commit.boundary)
        kept = self._tensors.setdefault(slot, KeptTensors(slot))
        if self._as_needed:
            self._check_room(commit)
        kept.fill(
            engine.replicas.to_give(commit, commit.boundary) | engine.saves.tensors(), lambda: engine.inject("copy")
        )
        is_small = len(parts.journal) + len(parts.set_up) <= SMALL_PARTS_BYTES
        if is_small:  # a loss at the beginning of the step goes back to this copy
            write_parts(slot, parts)
            kept.mark(parts.boundary)
            self._slots.filled(slot, parts.boundary)
        self._needs_thread = not (is_small and self._as_needed and not self._giver.peer_host)
        self._finishing = threading.Thread(
            target=self._finish, args=(slot, kept, parts, not is_small), name="torchrelay-keep", daemon=True
        )
        self._finishing.start()
        if self._sync:
            self.wait()

    def _check_room(self, commit: BoundarySnapshot) -> None:
        """Raise JournalError where copies that were not asked for would leave too little room for others."""
        if self.size_bytes:
            return
        needed_bytes = SLOTS * self._needed_bytes(commit)
        room = os.statvfs(self._folder)
        free_bytes = room.f_bavail * room.f_frsize // max(1, min(self._engine.world_size, os.cpu_count() or 1))
        if needed_bytes > free_bytes // 2:
            raise JournalError(
                f"{needed_bytes >> 20} MiB of copies would take more than half of this rank's share of shared memory, "
                f"{free_bytes >> 20} MiB; --buddy-every makes them all the same"
            )

    def _needed_bytes(self, commit: BoundarySnapshot) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self._engine.replicas.tensors(commit).values())

    def _finish(self, slot: Path, kept: KeptTensors, parts: KeptParts, with_parts: bool) -> None:
        try:
            if with_parts:
                write_parts(slot, parts)
            kept.seal(parts.boundary, self._hurry.is_set)
            self._slots.filled(slot, parts.boundary)
            self.size_bytes = kept.size_bytes
            self.failed = self._giver.give(kept, parts)
        except (OSError, TorchrelayError, RuntimeError) as e:
            self._fail(parts.boundary, e)

    def _fail(self, boundary: int, error: Exception) -> None:
        self.failed = f"the state could not be copied at boundary {boundary}: {error}"
