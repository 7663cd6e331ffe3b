"""What the agent tells a training process through its environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from torchrelay.protocol import names
from torchrelay.protocol.errors import FatalError
from torchrelay.protocol.launch_env import TORCHRUN_NAMES
from torchrelay.protocol.logs.log_lines import LogLines, LogPart
from torchrelay.protocol.options.cost_limit import MOST_SHARE_PERCENT
from torchrelay.protocol.options.faults import Fault, parse_fault
from torchrelay.protocol.options.numbers import NumberWatch, parse_watches
from torchrelay.protocol.security.transfer_protection import INTEGRITY, checked

if TYPE_CHECKING:
    from torchrelay.shim.agent_link.start_over import InterpreterStart


@dataclass(frozen=True)
class ShimConfig:
    """`socket` is the agent's, `journal` its folder of shared memory, `address` where peers reach this node.

    `token_file`: where the token is once the agent is there; empty: `token` is it.
    """

    socket: str
    worker: str
    token: str
    journal: str
    spare: bool
    address: str
    faults: tuple[Fault, ...]
    roots: tuple[str, ...]
    token_file: str = ""
    hold_at: int = 0
    """The boundary at which `torchrelay check` wants the rank to stand still; 0: it is no check."""
    made_files: str = ""
    cut_loaders: int = 0
    """In a check: how many batches a data loader gives; 0: all."""
    asks: bool = False
    """Whether the agent is to say what this process is, once it is there."""
    launch: dict[str, str] = field(default_factory=dict)
    """What the launcher has set, where that was not the agent."""
    buddy_every: int = 0
    """After so many steps the state is copied into host memory, below `kept`; 0: never."""
    buddy_sync: bool = False
    """No step begins before the copies at its head are whole, on all ranks."""
    kept: str = ""
    watches: tuple[NumberWatch, ...] = ()
    cost_limit_percent: float = MOST_SHARE_PERCENT
    """Of a step, for capture; 0: whatever it takes."""
    protection: str = INTEGRITY
    """Of tensors that go to another machine, as in `transfer_protection`."""
    grace_s: float = 30.0
    started: InterpreterStart | None = None
    """How to begin anew in place, where the agent may say so; None: it never does."""
    entropy: str = ""
    """In a drill: what chance is made of in a rank's set-up; empty: it is the system's."""
    log: LogLines = field(default_factory=lambda: LogLines(LogPart.SHIM))

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], launch: Mapping[str, str] = MappingProxyType({})) -> ShimConfig:
        """`launch` is the script's own environment.

        Raises FatalError if a variable is missing, UserError if a fault is not understood.
        """

        def need(name: str) -> str:
            value = environ.get(name)
            if not value:
                raise FatalError(f"{name} is not set")
            return value

        return cls(
            socket=need(names.ENV_SOCKET),
            worker=need(names.ENV_WORKER),
            token=need(names.ENV_TOKEN) if not environ.get(names.ENV_TOKEN_FILE) else "",
            token_file=environ.get(names.ENV_TOKEN_FILE, ""),
            journal=need(names.ENV_JOURNAL),
            spare=environ.get(names.ENV_SPARE) == "1",
            address=environ.get(names.ENV_ADDRESS) or "127.0.0.1",
            faults=parse_faults(environ.get(names.ENV_INJECT, "")),
            roots=tuple(filter(None, environ.get(names.ENV_ROOTS, "").split(os.pathsep))),
            hold_at=int(environ.get(names.ENV_HOLD_AT) or 0),
            made_files=environ.get(names.ENV_MADE_FILES, ""),
            cut_loaders=int(environ.get(names.ENV_CUT_LOADERS) or 0),
            asks=environ.get(names.ENV_ASK) == "1",
            launch={name: launch[name] for name in TORCHRUN_NAMES if name in launch},
            buddy_every=int(environ.get(names.ENV_BUDDY_EVERY) or 0),
            buddy_sync=environ.get(names.ENV_BUDDY_SYNC) == "1",
            kept=environ.get(names.ENV_KEPT, ""),
            watches=parse_watches(environ.get(names.ENV_WATCH, "")),
            cost_limit_percent=float(environ.get(names.ENV_COST_LIMIT) or cls.cost_limit_percent),
            protection=checked(environ.get(names.ENV_TRANSFER) or INTEGRITY),
            grace_s=float(environ.get(names.ENV_GRACE) or cls.grace_s),
            entropy=environ.get(names.ENV_ENTROPY, ""),
            log=LogLines.from_environ(LogPart.SHIM, environ),
        )


def parse_faults(text: str) -> tuple[Fault, ...]:
    """Faults as the agent writes them: separated by semicolons. Raises UserError."""
    return tuple(parse_fault(part) for part in text.split(";") if part)
