"""What is known of one process of the job."""

from __future__ import annotations

from dataclasses import dataclass

from torchrelay.protocol.machine.process_states import CANNOT_GO_ON
from torchrelay.protocol.messages import Armed, Report, ScriptFailed, Unfit, WorkerExited, WorkerProgress
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.transport.telling import condition, moves


@dataclass(slots=True)  # a controller of a cluster keeps thousands
class Worker:
    """`rank`: the one that it holds, joins as, or last held; NO_RANK for a spare that has not been asked yet."""

    worker: str
    node: str
    pid: int
    rank: int
    warm: bool = False
    armed: Armed | None = None
    disabled: str = ""
    report: Report | None = None
    finishing: bool = False
    held: bool = False
    failed: ScriptFailed | None = None
    unfit: Unfit | None = None
    """Why it is about to end itself."""
    exited: WorkerExited | None = None
    progress: WorkerProgress | None = None
    seen_boundary: int = -1
    """The furthest boundary known, from progress, a fault's report or a journal."""
    came_s: float = 0.0
    """When this controller first heard of it."""
    news_s: float = 0.0
    moved_s: float = 0.0
    busy_s: float = 0.0
    stopped_since_s: float | None = None
    devices: tuple[str, ...] = ()
    """What it uses: the UUID of its GPU, its network ports."""
    copies_to: str = ""
    """The node whose agent was named to it as the one that keeps copies of its journals."""
    copied_to: str = ""
    """The same once these copies are whole."""
    fault_s: float | None = None
    """When a fault of --inject was about to strike here: the true start of what is then detected."""
    copy_on: str = ""
    """The other node on which its buddy has whole copies of its state."""
    home_rank: int = NO_RANK
    """Of its own environment, whatever it is by now."""
    started_for: int = NO_RANK
    """The rank that it was started for in the middle of the job; no spare for others."""
    rehearses: bool = False
    """It was started to rehearse, and is never given a rank."""
    in_place_of: str = ""
    """The worker whose place it has, and whose device."""
    told_to_end: bool = False
    """By this controller."""
    local_rank: int = 0
    """Which of its pod's processes it is: the spare of ranks with the same one, since devices go by it."""

    @property
    def alive(self) -> bool:
        return self.exited is None

    @property
    def is_spare(self) -> bool:
        given = self.rank != NO_RANK or self.rehearses
        return self.alive and not given and not self.disabled and self.failed is None

    def lost_since_s(self, seen_s: float) -> float:
        """Return when it was lost: when the fault of --inject struck, else when something was seen of it."""
        return seen_s if self.fault_s is None else self.fault_s

    def take_progress(self, p: WorkerProgress, now_s: float) -> bool:
        """Whether that is news; a rank that has only come further than it was is none."""
        is_news = self.progress is None or condition(self.progress) != condition(p)
        self.moved_s = now_s - p.still_s
        self.busy_s = now_s - p.idle_s
        if p.process_state not in CANNOT_GO_ON:
            self.stopped_since_s = None
        elif self.stopped_since_s is None:
            self.stopped_since_s = now_s
        self.progress = p
        self.news_s = now_s
        self.seen_boundary = max(self.seen_boundary, p.boundary)
        return is_news

    def silent_s(self, now_s: float) -> float:
        """For how long it has not moved. One that its agent has seen move goes on moving until the agent says otherwise."""
        return 0.0 if self.progress is not None and moves(self.progress) else now_s - self.moved_s
