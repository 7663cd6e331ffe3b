"""What agents tell of ranks that train, and how often: what the controller may conclude from a silence rests on it.

A change of condition is told as soon as it is seen. Between two tellings a rank that has moved counts as one that moves.
"""

from __future__ import annotations

from torchrelay.protocol.machine.process_states import CANNOT_GO_ON
from torchrelay.protocol.messages.agent_reports import WorkerProgress
from torchrelay.protocol.words.positions import NOT_TRAINING, RankPhase

TELL_S = 1.0
"""As fresh as what users see has to be."""
MOST_TELL_S = 5.0
"""Where one controller has thousands of agents: less than an agent may be silent before anybody asks why."""
STILL_S = 1.0
IDLE_S = 2.0
"""Ages are told and then grow by the controller's clock: one that is larger than these is told as soon as it ends."""
LATE_S = 2.0
"""So much later than agreed a word of an agent comes now and then."""
ANSWER_S = 10.0
"""A controller answers what an agent tells at least so often."""
DEAF_AFTER_ANSWERS = 3
"""Answers in a row that do not come: the stream carries nothing any more, whatever both ends believe."""
TELLINGS_PER_S = 2000.0
"""That a controller takes in with about half a processor."""
TELLINGS_OF_A_JOB = 4
"""As many as cost what it costs to look at one job by the clock, which is done as often as its agents tell."""

Condition = tuple[str, bool, bool, bool]


def condition(p: WorkerProgress) -> Condition:
    """Return what a verdict could depend on: its phase outside of training, and whether it stands still, is idle, cannot go on."""
    stands = p.process_state in CANNOT_GO_ON
    if p.phase in NOT_TRAINING:
        return p.phase, False, False, stands
    return "", p.still_s >= STILL_S, p.idle_s >= IDLE_S, stands


def pace(agents: int, jobs: int = 0) -> float:
    """Return the seconds between two reports of an agent without news, if a controller has so many agents and jobs."""
    return min(max(TELL_S, (agents + TELLINGS_OF_A_JOB * jobs) / TELLINGS_PER_S), MOST_TELL_S)


def can_wait(p: WorkerProgress) -> bool:
    """Return whether the next report of the rank may come later than usual, unless something changes."""
    return p.process_state not in CANNOT_GO_ON and (p.phase in (RankPhase.SET_UP, RankPhase.FINISHED) or moves(p))


def moves(p: WorkerProgress) -> bool:
    """Return whether the rank trains, and had moved when this was reported."""
    return p.phase not in NOT_TRAINING and p.still_s < STILL_S
