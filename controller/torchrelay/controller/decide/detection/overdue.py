"""A rank hangs, and nobody can take it over: how long the others wait for it. As long as torch itself would let them wait."""

from __future__ import annotations

from collections.abc import Iterable

from torchrelay.controller.decide.detection.hang import Culprit

DEFAULT_TIMEOUT_S = 1800.0
"""Of a process group that is given none: torch.distributed.constants.default_pg_timeout."""


def overdue(
    culprit: Culprit, because: str, hang_timeout_s: float, option: str, group_timeouts_s: Iterable[float]
) -> str:
    """Return why the job ends now, or an empty string as long as the others may still wait.

    `because`: why the rank cannot be replaced. `hang_timeout_s`: what was asked for; 0: the timeout of the ranks' process group.
    `option`: with what it was.
    """
    limit_s = hang_timeout_s or max((s for s in group_timeouts_s if s > 0), default=DEFAULT_TIMEOUT_S)
    if culprit.silent_s < limit_s:
        return ""
    whose = option if hang_timeout_s else "the timeout of its process group"
    stack = "".join(f"\n    {call}" for call in culprit.stack)
    return (
        f"{culprit.reason}; the others do not wait longer than {limit_s:g} s ({whose}), and rank {culprit.rank} cannot be "
        f"replaced: {because}" + (f"\n  where rank {culprit.rank} is, innermost call first:{stack}" if stack else "")
    )
