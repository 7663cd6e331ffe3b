"""The exception that takes a rank back to its latest boundary."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchrelay.shim.instrument.activation import Activation


class Rewind(BaseException):
    """Raised only where nothing of ours can be torn; caught by the rewritten loop whose activation it names.

    Not an Exception: scripts and frameworks swallow those.
    """

    def __init__(self, activation: Activation) -> None:
        super().__init__("torchrelay is rewinding to the latest boundary; this must not be caught")
        self.activation = activation
