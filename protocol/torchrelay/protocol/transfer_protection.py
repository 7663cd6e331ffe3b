"""How tensors are protected that go from one machine to another: the values of `--transfer-encryption`. Standard library only.

On one machine, where only the kernel carries them, nothing is added.
"""

from __future__ import annotations

from torchrelay.protocol.errors import UserError

OFF, INTEGRITY, FULL = "off", "integrity", "full"
CHOICES = (OFF, INTEGRITY, FULL)
"""`integrity`: nobody can change what goes between ranks, or send it in a rank's place; whoever listens can read it.
`full`: nobody can read it either."""


def checked(text: str) -> str:
    """Raises UserError for what is no choice."""
    if text not in CHOICES:
        raise UserError(f"--transfer-encryption {text}: one of {', '.join(CHOICES)}")
    return text
