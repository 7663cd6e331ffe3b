"""A rank's set-up and the world outside: recorded in a rank, given again in a joiner, until the training loop is reached."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters.cpython.diverted import Diversions
from torchrelay.shim.set_up import clock, entropy, standard_input, stores
from torchrelay.shim.set_up.files_seen import FilesSeen, SeenRecorder
from torchrelay.shim.set_up.outside import Recorded, Replayed

NUMPY_RANDOM = "numpy.random"


class SetUp:
    """Set-up, from the first line of the script on. `draw`: where chance comes from.

    `recorded`: what the lost rank has written down; empty for a rank from the start.

    Raises JournalError, StateMismatchError for a record that a joiner cannot go by.
    """

    def __init__(self, recorded: bytes = b"", draw: entropy.Draw = entropy.from_system) -> None:
        self._recorded = recorded
        self._draw = draw
        self._files: SeenRecorder | None = None
        self.seen: FilesSeen
        """What the lost rank found, in a joiner."""
        self._outside: Recorded | Replayed
        if recorded:
            answers, self.seen, self._has_input = pickle.loads(recorded)
            self._outside = Replayed(answers)
        else:
            self._files = SeenRecorder()
            self._outside = Recorded(draw(entropy.KEY_BYTES, "generators"))
            self.seen = self._files.seen
            self._has_input = standard_input.has_standard_input()
        self._reads: standard_input.InputReads | None = None
        self.on_input: Callable[[str], None] | None = None
        """Called with a reason when training reads standard input, before it has what it reads."""
        self._diversions = Diversions()
        self._for_good = Diversions()
        self._is_on = False
        self.on_end: Callable[[], None] = lambda: None

    def begin(self) -> None:
        """Begin to record or to answer. Raises UnsupportedError where this Python is built otherwise; nothing is diverted then."""
        self._is_on = True
        try:
            entropy.divert_draws(self._diversions, self._outside, self._draw)
            clock.divert_clock(self._diversions, self._outside)
            if self._files is not None:
                self._files.divert(self._diversions)
        except UnsupportedError:
            self.end()
            raise
        if self._has_input:
            with suppress(UnsupportedError):  # something has put an object of its own in the place of sys.stdin
                self._reads = standard_input.watch_standard_input(self._outside, self._for_good)
        entropy.seed_python(self._outside.key)
        if NUMPY_RANDOM in sys.modules:
            self.numpy_imported(sys.modules[NUMPY_RANDOM])

    def torch_imported(self, torch: ModuleType) -> None:
        """Divert and seed torch. Raises UnsupportedError as `begin`. A spare has imported torch before."""
        if self._is_on:
            entropy.divert_torch(self._diversions, self._outside, torch, self._draw)
            stores.divert_stores(self._diversions, self._outside)
            entropy.seed_torch(self._outside.key, torch)

    def numpy_imported(self, generators: ModuleType) -> None:
        if self._is_on:
            entropy.seed_numpy(self._outside.key, generators)

    def snapshot(self) -> bytes:
        """Return the record of set-up for the journal."""
        if not isinstance(self._outside, Recorded):
            return self._recorded
        return pickle.dumps((self._outside.snapshot(), self.seen, self._has_input), pickle.HIGHEST_PROTOCOL)

    @property
    def lost(self) -> str:
        """Return what of the record cannot be handed on; empty if nothing."""
        unseen = self._reads.unseen if self._reads is not None else ""
        return self._outside.lost or unseen if isinstance(self._outside, Recorded) else ""

    @property
    def finds_more(self) -> bool:
        """Return whether a joiner may find files that the job has made since."""
        return self._files is not None and self._files.is_full

    def gone(self) -> list[str]:
        """Return files that set-up has read, that are not there any more, and whose content nobody has kept."""
        return [name for name in self.seen.large if not os.path.lexists(name)]

    def at_boundary(self, number: int) -> None:
        """Note a boundary, where training may have to go back to. Set-up is over once a step is done."""
        if number > 0:
            self.end()
        elif isinstance(self._outside, Recorded):
            self._outside.mark()

    def go_back(self) -> None:
        """Go back to the latest boundary: what its step has learned from outside is given again."""
        if isinstance(self._outside, Recorded):
            self._outside.go_back()

    def end(self) -> None:
        """End set-up: the training loop is reached, or nothing is protected.

        All but `on_input` is as in plain Python from here on.
        """
        if self._is_on and self._reads is not None:
            self._reads.begin_training(self.on_input)
        self._is_on = False
        self._diversions.end()
        self.on_end()
