"""Faults that the user asked for with `--inject`: they fire once, in the step and phase that was named, and say so first."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence

import torch

from torchrelay.protocol.exhaustive import assert_never
from torchrelay.protocol.messages import FaultInjected, MigrationWanted
from torchrelay.protocol.options.faults import Fault, FaultKind
from torchrelay.shim.adapters.process_groups import process_group, tcp
from torchrelay.shim.agent_link.link import AgentLink
from torchrelay.shim.script.guard import INJECTED


def wait_alone(rank: int, world_size: int, waiting: Callable[[bool], None]) -> None:
    """Receive from a peer what it never sends, as a collective does that others never enter."""
    waiting(True)
    try:
        process_group.receive_in_vain((rank + 1) % world_size)
    finally:
        waiting(False)


class FaultInjector:
    """Lets ordered faults strike. `step_now`: the number of the step that is being done, from 1.

    `wait_alone`: waits for a peer that never comes. `waited_s`: spent in collectives so far.
    """

    def __init__(
        self,
        faults: tuple[Fault, ...],
        link: AgentLink,
        step_now: Callable[[], int],
        wait_alone: Callable[[], None] = lambda: None,
        waited_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self._wait_alone = wait_alone
        self._faults = list(faults)
        self._link = link
        self._step_now = step_now
        self._slow = 1.0
        self._waited_s = waited_s
        self._worked_s = 0.0

    @property
    def armed(self) -> bool:
        return bool(self._faults)

    def _work_s(self) -> float:
        return time.monotonic() - self._waited_s()

    def _dawdle(self) -> None:
        """Sleep as a straggler: what it does outside of collectives takes `slow` times as long."""
        time.sleep((self._work_s() - self._worked_s) * (self._slow - 1.0))
        self._worked_s = self._work_s()

    def at(self, phase: str, step: int | None = None) -> None:
        """Inject faults where a phase begins. `step`: of that phase, if it is not the one that is being done. May not return."""
        if phase == "head" and self._slow > 1.0:
            self._dawdle()
        for fault in list(self._faults):
            wanted = "head" if fault.kind is FaultKind.PLANNED else fault.phase
            if wanted == phase and fault.step == (self._step_now() if step is None else step):
                self._faults.remove(fault)
                self._fire(fault)

    def in_migration(self, phase: str, step: int | None) -> None:
        """Inject faults in a migration. May not return.

        `step`: the one that the migration has interrupted, None where this process does not know it yet.
        """
        for fault in list(self._faults):
            if fault.phase == phase and (step is None or fault.step <= step):
                self._faults.remove(fault)
                self._fire(fault)

    def strike_in_forward(self, roots: Sequence[torch.nn.Module]) -> None:
        """Let the fault strike when the module in the model's middle is called. At a step's head, for models that nothing wraps."""
        if not roots or not any(f.phase == "forward" and f.step == self._step_now() for f in self._faults):
            return
        modules = list(max(roots, key=lambda root: sum(1 for _ in root.modules())).modules())

        def reached(*_: object) -> None:
            if torch.is_grad_enabled():
                handle.remove()
                self.at("forward")

        handle = modules[len(modules) // 2].register_forward_pre_hook(reached)

    def _fire(self, fault: Fault) -> None:  # noqa: C901 - one case for each kind of fault
        if fault.kind is FaultKind.PARTITION:
            _cut_off()  # before others are told of it, who go on then
        self._link.send_and_wait(FaultInjected(str(fault), fault.step - 1))
        match fault.kind:
            case FaultKind.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case FaultKind.STOP:
                os.kill(os.getpid(), signal.SIGSTOP)
            case FaultKind.SPIN:
                _run_in_circles()
            case FaultKind.DEADLOCK:
                _wait_for_nobody()
            case FaultKind.LONELY:
                self._wait_alone()
            case FaultKind.EXIT:
                raise SystemExit(fault.code)
            case FaultKind.RAISE:
                raise RuntimeError(f"{INJECTED}{fault}")
            case FaultKind.STRAGGLER:
                self._worked_s = self._work_s()
                self._slow = fault.slow
            case FaultKind.NODE:
                os.kill(self._link.agent_pid(), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)  # as the kernel does, which may take a moment
            case FaultKind.PLANNED:
                self._link.send(MigrationWanted(fault.as_asked))
            case FaultKind.PARTITION:
                pass  # done above
            case (
                FaultKind.CONTROLLER
                | FaultKind.XID
                | FaultKind.ECC
                | FaultKind.THERMAL
                | FaultKind.NVLINK
                | FaultKind.IB_FLAP
                | FaultKind.OOM
            ):
                pass  # the agent does it, once it has heard
            case _:
                assert_never(fault.kind)


def _cut_off() -> None:
    """Drop what comes from the network, as on a link that is down: no end of a connection is told. What is sent still leaves."""
    with tcp.connections() as found:
        for fd in found.values():
            tcp.drop_all(fd)


def _run_in_circles() -> None:
    while True:
        pass


def _wait_for_nobody() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()
