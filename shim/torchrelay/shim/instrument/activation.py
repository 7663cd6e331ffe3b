"""One run of one loop statement of the script, and what is known of it."""

from __future__ import annotations

from types import FrameType
from typing import Any

from torchrelay.shim.adapters.cpython.frames import ended_frame
from torchrelay.shim.capture import rng


class Activation:
    """One run of one loop statement, from its start to its end.

    `entry`: how often its statement was entered since the loop around it was at its head, or since the script's start.
    `made_mark`, `first_mark`, `head_mark`: how many collectives were recorded when its iterator was made, at its first head, and at
    its latest. `drawn`: those of its latest draw.
    `computes`: whether gradients were computed in it. `around`: the loop around it. `steps`: how many gates were passed since its
    head was reached.
    """

    __slots__ = (
        "around",
        "before",
        "began",
        "computes",
        "data_mark",
        "drawn",
        "entered",
        "entry",
        "first_mark",
        "first_passed",
        "frame",
        "graph_at",
        "head",
        "head_mark",
        "heads",
        "inner",
        "item",
        "iterator",
        "loaders",
        "made_mark",
        "replay",
        "rng",
        "seen_within",
        "site",
        "steps",
    )

    def __init__(
        self, site: str, frame: FrameType, state: rng.RngState, entry: int, around: Activation | None = None
    ) -> None:
        self.site = site
        self.frame = frame
        self.rng = state
        self.entry = entry
        self.around = around
        self.heads = self.steps = 0
        self.computes = False
        self.graph_at = 0
        """When the present iteration began, as `graph_order` has it."""
        self.item: Any = None
        self.iterator: Any = None
        self.before: Any = None
        """How its iterator was before its latest draw, where that is done again in another process."""
        self.entered = False
        """Whether another process puts the iterator to its place; otherwise it is led there by drawing again."""
        self.replay = False
        self.head = b""
        self.data_mark = -1
        """How much data was noted when the state at its present head was walked, or -1."""
        self.seen_within: tuple[int, int] | None = None
        """How much data was noted before and after that which was first seen at heads of loops within its present iteration."""
        self.made_mark = self.first_mark = self.head_mark = 0
        self.drawn: tuple[Any, ...] = ()
        self.began: tuple[Any, ...] = ()
        self.first_passed = 0
        self.inner: dict[str, int] = {}
        """How often each loop right inside of it was entered since its head."""
        self.loaders: list[Any] = []

    def let_go(self) -> None:
        """Let go of the script's objects, once the loop has ended."""
        self.frame = ended_frame()
        self.item = self.iterator = self.before = None
        self.loaders = []

    def is_run_by(self, frame: FrameType | None) -> bool:
        """Whether the function that has the loop runs still, as one of those that have called `frame`."""
        while frame is not None and frame is not self.frame:
            frame = frame.f_back
        return frame is not None
