"""Faults that `--inject` can make: the one parser and the one place with their names."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from torchrelay.protocol.errors import UserError

COMPILERS = ("cc", "gcc", "clang")
"""One of them builds the fake driver."""


class FaultKind(str, enum.Enum):
    """What strikes. The process goes on where a device is struck: its agent gives the fault to the fake device that the process
    uses, or to the fake kernel log.
    """

    PLANNED = "planned"
    KILL = "kill"
    STOP = "stop"
    EXIT = "exit"
    RAISE = "raise"
    NODE = "node"
    """The agent of the rank's node is killed, and the kernel ends all its workers with it, spares too."""
    CONTROLLER = "controller"
    """The job's controller is killed; the rank only says when."""
    SPIN = "spin"
    """It runs in circles."""
    DEADLOCK = "deadlock"
    """It waits for a lock that nobody gives back."""
    LONELY = "lonely"
    """It waits in a communication that no other rank takes part in."""
    PARTITION = "partition"
    """Nothing that is sent over the process's TCP connections reaches it any more, and it goes on."""
    STRAGGLER = "straggler"
    XID = "xid"
    ECC = "ecc"
    THERMAL = "thermal"
    NVLINK = "nvlink"
    IB_FLAP = "ib-flap"
    OOM = "oom"

    __str__ = str.__str__  # as in the option, whatever the version of Python


DEVICE_KINDS = (
    FaultKind.XID,
    FaultKind.ECC,
    FaultKind.THERMAL,
    FaultKind.NVLINK,
    FaultKind.IB_FLAP,
    FaultKind.OOM,
)
_OPTIONS = {FaultKind.EXIT: ("code",), FaultKind.XID: ("code",), FaultKind.STRAGGLER: ("slow",)}
DEFAULT_XID = 79
DEFAULT_SLOW = 3.0
COPY = "copy"
"""In the middle of copying the state for `--buddy-every`, at the head of the step."""
INJECT_PHASES = ("data", "forward", "backward", "gate", "optimizer", "after-step")
"""Those that every step has."""
MIGRATION_PHASES = ("prepare", "transfer", "rebuild", "verify")
"""Those of a migration, for a second failure in its midst: the rank's new holder is struck, or a rank that stays."""
SAVE = "save"
"""In the middle of writing its part of a just-in-time checkpoint."""
_IN_MIGRATIONS = (FaultKind.KILL, FaultKind.STOP, FaultKind.CONTROLLER)


@dataclass(frozen=True)
class Fault:
    """One fault. `kind` strikes `rank` in the `step`-th optimizer step (from 1), in `phase`.

    If that is a phase of a migration: in the first migration from that step on in which the rank comes to it.

    `code`: the exit code of `exit`, the number of `xid`; `slow`: how many times as long a `straggler` takes from then on.
    """

    kind: FaultKind
    rank: int
    step: int
    phase: str = "forward"
    code: int = 1
    slow: float = DEFAULT_SLOW

    @property
    def is_of_a_device(self) -> bool:
        return self.kind in DEVICE_KINDS

    def __str__(self) -> str:
        extra = f",code={self.code}" if self.kind in (FaultKind.EXIT, FaultKind.XID) else ""
        extra += f",slow={self.slow:g}x" if self.kind is FaultKind.STRAGGLER else ""
        return f"{self.kind}:rank={self.rank},step={self.step},phase={self.phase}{extra}"

    @property
    def as_asked(self) -> str:
        """Return the reason that a planned fault gives for its migration."""
        return f"--inject {self}"


def parse_fault(text: str, world_size: int | None = None) -> Fault:
    """Parse a fault such as `kill:rank=1,step=30,phase=backward`. Raises UserError with what would be right."""
    name, _, rest = text.partition(":")
    try:
        kind = FaultKind(name)
    except ValueError:
        known = ", ".join(FaultKind)
        raise UserError(f"--inject {text}: unknown fault {name!r}; use one of {known}") from None
    values = _settings(text, kind, rest)
    rank = _number(text, values, "rank")
    step = _number(text, values, "step")
    if rank is None or step is None:
        raise UserError(f"--inject {text}: rank= and step= are needed, as in {kind}:rank=1,step=30")
    if step < 1:
        raise UserError(f"--inject {text}: steps count from 1")
    if world_size is not None and rank >= world_size:
        raise UserError(f"--inject {text}: there is no rank {rank}; the job has ranks 0 to {world_size - 1}")
    code = _code(text, kind, values)
    phase = _phase(text, kind, values.get("phase", "forward"))
    return Fault(kind, rank, step, phase, code, _slow(text, values.get("slow")))


def _settings(text: str, kind: FaultKind, rest: str) -> dict[str, str]:
    values: dict[str, str] = {}
    allowed = ("rank", "step", "phase", *_OPTIONS.get(kind, ()))
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals or key not in allowed:
            raise UserError(
                f"--inject {text}: {part!r} is not understood; {kind} takes {', '.join(k + '=' for k in allowed)}"
            )
        if key in values:
            raise UserError(f"--inject {text}: {key}= is given twice")
        values[key] = value
    return values


def _number(text: str, values: dict[str, str], key: str) -> int | None:
    if key not in values:
        return None
    if not values[key].isascii() or not values[key].isdigit():
        raise UserError(f"--inject {text}: {key}={values[key]} is not a whole number from 0")
    return int(values[key])


def _code(text: str, kind: FaultKind, values: dict[str, str]) -> int:
    code = _number(text, values, "code")
    if code is None:
        return DEFAULT_XID if kind is FaultKind.XID else 1
    if kind is FaultKind.EXIT and not 1 <= code <= 255:
        raise UserError(f"--inject {text}: code= is an exit code from 1 to 255")
    if kind is FaultKind.XID and not 1 <= code <= 999:
        raise UserError(f"--inject {text}: code= is the number of an XID, as in code=79")
    return code


def _phase(text: str, kind: FaultKind, phase: str) -> str:
    if phase not in (*INJECT_PHASES, COPY, *MIGRATION_PHASES, SAVE):
        known = ", ".join((*INJECT_PHASES, COPY, *MIGRATION_PHASES, SAVE))
        raise UserError(f"--inject {text}: unknown phase {phase!r}; use one of {known}")
    if phase in (*MIGRATION_PHASES, SAVE) and kind not in _IN_MIGRATIONS:
        raise UserError(f"--inject {text}: in the {phase} of a migration there is only {' and '.join(_IN_MIGRATIONS)}")
    return phase


def _slow(text: str, value: str | None) -> float:
    if value is None:
        return DEFAULT_SLOW
    try:
        slow = float(value.removesuffix("x"))
    except ValueError:
        slow = 0.0
    if not 1.0 < slow <= 100.0:
        raise UserError(
            f"--inject {text}: slow= says how many times as long the rank takes, as in slow=3x; above 1, up to 100"
        )
    return slow
