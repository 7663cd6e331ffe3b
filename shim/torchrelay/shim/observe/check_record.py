"""`torchrelay check`: what a rank went through before it stood still. The command reads it from a file; one line for each thing."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import weakref
from pathlib import Path
from types import FrameType
from typing import Any

from torchrelay.protocol.names import SEEN_EPOCH, SEEN_EVALUATION, SEEN_SAVE
from torchrelay.shim.observe.origins import call_site
from torchrelay.shim.script.hidden_frames import hide_this_frame

STEPS_OF_THE_NEXT_EPOCH = 2
"""What shows itself in a second epoch alone is seen by then."""
EPOCHS = 4
"""How many times a loader's batches are gone through at most: one whose end starts no epoch, or with many batches a step."""


class CheckProgress:
    """Notes what a rank of a check goes through.

    `batches`: how many a loader gives in a check; 0: all that it has, and then only saves are noted.
    """

    def __init__(self, path: Path, batches: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._batches = batches
        self._told: set[tuple[str, str, int]] = set()
        self._steps = 0
        self._drawn_since: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._epoch_at = -1
        self._draws = False
        """Whether batches come from a loader of torch's, whose end can be waited for."""

    def torch_imported(self) -> None:
        """Count optimizer steps, and cut loaders, as torch is there now."""
        from torch.optim.optimizer import register_optimizer_step_post_hook

        register_optimizer_step_post_hook(self._stepped)
        self._watch_saves(sys.modules["torch"])
        if self._batches:
            from torchrelay.shim.data import short_loaders

            short_loaders.install(self._batches, self._began, self._ended)

    def is_enough(self, boundary: int, wanted: int) -> bool:
        """Return whether a rank that has come to `boundary` has seen what a check is for."""
        if boundary < wanted:
            return False
        if not self._draws or boundary >= wanted + EPOCHS * self._batches:
            return True
        return 0 <= self._epoch_at <= self._steps - STEPS_OF_THE_NEXT_EPOCH

    def _watch_saves(self, torch: Any) -> None:
        original = torch.save

        @functools.wraps(original)
        def save(*args: Any, **options: Any) -> None:
            if self._steps:
                self._note(SEEN_SAVE, "", sys._getframe(1))
            try:
                original(*args, **options)
            except BaseException as error:
                hide_this_frame(error)
                raise

        torch.save = save

    def _stepped(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._steps += 1

    def _began(self, iterator: Any) -> None:
        self._draws = True
        self._drawn_since[iterator] = self._steps

    def _ended(self, iterator: Any) -> None:
        """Note an epoch, or an evaluation: a loader's batches were used without a step then, after the first step."""
        steps = self._steps - self._drawn_since.get(iterator, self._steps)
        count = iterator._num_yielded
        if steps:
            self._epoch_at = self._steps
            self._note(SEEN_EPOCH, f"{count} batches, {steps} optimizer steps", sys._getframe(1))
        elif self._steps:
            self._note(SEEN_EVALUATION, f"{count} batches", sys._getframe(1))

    def _note(self, kind: str, text: str, frame: FrameType) -> None:
        place = call_site(frame)
        if (kind, *place) not in self._told:
            self._told.add((kind, *place))
            record = {"kind": kind, "text": text, "file": place.file, "line": place.line}
            with contextlib.suppress(OSError):  # a note that is missing is told as what the check did not come through
                os.write(self._file, (json.dumps(record) + "\n").encode())
