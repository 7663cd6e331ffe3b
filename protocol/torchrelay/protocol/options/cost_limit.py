"""From which cost on a job goes on without protection, rather than more slowly: what capture takes of each step.

The aim is 1 % of a step, or 1 ms where that is more. The limit is far above it, so that only what slows a job for good meets it.
"""

MOST_SHARE_PERCENT = 10.0
"""Of the median step. `--cost-limit` gives another one; 0: none."""

MOST_S = 0.01
"""And at least so many seconds of processor time a step: in steps of a few milliseconds a larger share slows nobody."""

WINDOW_STEPS = 64
"""Steps that are judged together, by their medians: an epoch's begin, a first walk or a busy machine are no reason."""

MOST_LOST_S = 5.0
LEAST_STEPS = 8
"""Once so many seconds are lost, so many steps are enough."""
