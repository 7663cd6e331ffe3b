"""What is known of the journal of one rank."""

from __future__ import annotations

from dataclasses import dataclass, field

from torchrelay.protocol.messages import JournalContent

BOUNDARIES_KEPT = 4


@dataclass
class RankJournal:
    """What is known of a rank's journal, from all the workers that held it: equal numbers mean equal states."""

    boundaries: dict[int, bytes] = field(default_factory=dict)
    gates: dict[int, bytes] = field(default_factory=dict)
    set_up: bytes = b""
    after: dict[int, bytes] = field(default_factory=dict)

    def add(self, content: JournalContent) -> None:
        for kept, new in ((self.boundaries, content.boundaries), (self.gates, content.gates)):
            kept.update(new)
            for number in sorted(kept)[:-BOUNDARIES_KEPT]:
                del kept[number]
        for number in [number for number, payload in self.boundaries.items() if not payload]:
            del self.boundaries[number]  # its loop was left there
        self.set_up = content.set_up or self.set_up
        self.after = content.after or self.after
