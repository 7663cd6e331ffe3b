"""The copies of ranks' states that processes of this place keep, as messages to the controller."""

from __future__ import annotations

from pathlib import Path

from torchrelay.protocol.journals.kept import whole_copies
from torchrelay.protocol.messages import KeptCopies, KeptCopy


def kept_copies(folder: Path) -> list[KeptCopies]:
    """Return one message for each copy below `folder`, and a last message without a copy."""
    found = [
        KeptCopies(
            (KeptCopy(rank, parts.boundary, str(path), parts.journal, parts.set_up, parts.ddp_layout),), last=False
        )
        for rank, copies in whole_copies(folder).items()
        for path, parts in copies
    ]
    return [*found, KeptCopies()]
