"""What is protected of one rank, and what a rehearsal has shown of it."""

from __future__ import annotations

from torchrelay.protocol.messages.message import message


@message(frozen=True)
class Gap:
    """One thing that a rank's protection lacks. `kind` is stable, for programs; `text` is for people.

    `effect`: one of `names.GAP_EFFECTS`. `file` and `line`: where it is made in the script; empty and 0 where no line makes it.
    """

    kind: str
    effect: str
    text: str
    file: str = ""
    line: int = 0


@message(frozen=True)
class Report:
    """Protection report of one rank, sent when the training loop is known and again when it changes.

    `head_s`, `gate_s`: what a step costs on the training thread, mean since the report before, at the loop's head and before
    the optimizer step; `barrier_s`: the shortest wait in the gate's barrier. `memory_bytes`: shared memory of the journals.
    `settled`: the training loop is known, and no more taken for the outermost one that there is.
    """

    file: str
    line: int
    device_state_bytes: int
    journal_bytes: int
    tensors: int
    unprotected: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    gaps: tuple[Gap, ...] = ()
    boundary: int = -1
    settled: bool = False
    head_s: float = 0.0
    gate_s: float = 0.0
    barrier_s: float = 0.0
    memory_bytes: int = 0
    copy_every: int = 0
    """Steps between two copies of the state in host memory; 0: there are none. `copy_s`: of the training thread, for one."""
    copy_bytes: int = 0
    copy_s: float = 0.0
    copy_failed: str = ""
    shape: int = 0
    """How many kinds of objects, in how many places, the state has had so far: grows when it gets another shape."""
    group_timeout_s: float = 0.0
    """Of its default process group."""
    share: float = 0.0
    """Of a step, that capture takes in processor time: median of the latest steps; `share_p95`: 95 % of them stay below."""
    share_p95: float = 0.0
    transfer_encryption: str = ""
    """One of `transfer_protection.CHOICES`."""


@message(frozen=True)
class Rehearsed:
    """How a rehearsal ended. `outcome`: one of `names.REHEARSAL_OUTCOMES`; `reason`: why it is not `same`.

    `gaps`: what differs or cannot be done, each with its place in the script. `nodes`: how many objects were compared.
    """

    request: int
    rank: int
    boundary: int
    outcome: str
    reason: str
    gaps: tuple[Gap, ...] = ()
    nodes: int = 0
    took_s: float = 0.0
