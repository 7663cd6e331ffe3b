"""A run says in its folders of checkpoints that it lives, so that no other one that tidies up there takes what it needs."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from torchrelay.protocol.names import LIFE_SIGN, life_sign_file

AGAIN_S = 60.0
BELIEVED_S = 3600.0
"""A sign that is older is of a run that had no time to remove it. Clocks of machines may differ by minutes."""


class LifeSign:
    """The life sign of a run, in each existing folder of `folders`.

    `entered_from`: the checkpoint of another run that it goes on from, if any.
    Each machine of a run has its own sign: one may end before the others. A folder that cannot be written has no sign.
    """

    def __init__(self, folders: Iterable[Path], run_id: str, entered_from: Path | None, node_rank: int = 0) -> None:
        beside = () if entered_from is None else (entered_from.absolute().parent,)
        self._paths = [
            folder / life_sign_file(f"{run_id}.{node_rank}") for folder in dict.fromkeys((*folders, *beside))
        ]
        self._content = "" if entered_from is None else entered_from.name

    def give(self) -> None:
        for path in self._paths:
            with contextlib.suppress(OSError):
                if path.exists():
                    os.utime(path)
                elif path.parent.is_dir():
                    whole = path.with_name(f"{path.name}.new")
                    whole.write_text(self._content)
                    whole.replace(path)

    async def keep_up(self) -> None:
        """Renew the sign until cancelled."""
        while True:
            await asyncio.sleep(AGAIN_S)
            self.give()

    def end(self) -> None:
        for path in self._paths:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def needed(folder: Path, now_s: float) -> tuple[frozenset[str], frozenset[str]]:
    """Return ids of the runs that live by their signs there, and names of the checkpoints that they entered from.

    `now_s`: time of day. Signs that are too old to be believed are removed.
    """
    runs = set()
    names = set()
    for path in folder.glob(f"*{LIFE_SIGN}"):
        with contextlib.suppress(OSError, UnicodeDecodeError):  # a run may end at this moment
            if now_s - path.stat().st_mtime > BELIEVED_S:
                path.unlink()
            else:
                runs.add(path.name.removesuffix(LIFE_SIGN).partition(".")[0])
                names.add(path.read_text())
    return frozenset(runs), frozenset(names)
