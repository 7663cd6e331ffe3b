"""How tensors are protected that go from one machine to another: the values of `--transfer-encryption`. Standard library only.

On one machine, where only the kernel carries them, nothing is added.
"""

from __future__ import annotations

from torchrelay.protocol.errors import UserError

OFF = "off"
INTEGRITY = "integrity"
FULL = "full"
CHOICES = (OFF, INTEGRITY, FULL)
"""`integrity`: nobody can change what goes between ranks, or send it in a rank's place; whoever listens can read it.
`full`: nobody can read it either. `off`: numbers can be changed, too; what may be unpickled cannot."""
MEANINGS = {
    OFF: "whoever is on the network between machines can read tensors on their way, and change the numbers in them",
    INTEGRITY: "nobody on the network between machines can change tensors on their way, whoever listens there can read them",
    FULL: "nobody on the network between machines can read or change tensors on their way",
}
COSTS = {OFF: "next to nothing", INTEGRITY: "a third to a half", FULL: "a third to a half"}
"""Of the rate at which tensors travel without protection, with both ends on the same two cores: as docs/transfer.md has it."""


def checked(text: str) -> str:
    """Return `text` if it is one of the choices. Raises UserError if not."""
    if text not in CHOICES:
        raise UserError(f"--transfer-encryption {text}: one of {', '.join(CHOICES)}")
    return text
