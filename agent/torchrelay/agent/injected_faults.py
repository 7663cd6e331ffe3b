"""Faults that a user orders, and that strike a process from outside: at its device, or at the controller."""

from __future__ import annotations

import json
import logging
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

from torchrelay.agent.agent import Agent
from torchrelay.agent.processes.fault_book import FaultBook
from torchrelay.protocol.messages import Ack, FaultInjected, FromWorker
from torchrelay.protocol.names import WorkerId
from torchrelay.protocol.options.faults import Fault, FaultKind, parse_fault

log = logging.getLogger(__name__)


class InjectedFaults:
    """The faults of one node.

    `faults`: as `--inject` takes them. `strike_device(worker, fault)` harms the device that the process uses.
    """

    def __init__(
        self,
        faults: Iterable[str],
        controller_file: Path,
        agent: Agent,
        strike_device: Callable[[WorkerId, Fault], None],
    ) -> None:
        self._book = FaultBook(faults)
        self._controller_file = controller_file
        self._agent = agent
        self._strike_device = strike_device

    def environment(self, rank: int) -> dict[str, str]:
        """Return the variables that tell a process which takes this rank of the faults that are still to come."""
        return self._book.environment(rank)

    def fires(self, worker: WorkerId, report: FaultInjected) -> None:
        """Let a fault strike. The process waits for the answer before it does its own part."""
        self._book.fired(report.fault)
        fault = parse_fault(report.fault)
        if fault.kind is FaultKind.CONTROLLER:
            self._kill_controller(fault)
        self._agent.tell(FromWorker(worker, report))  # in that case to the next one
        if fault.kind is FaultKind.CONTROLLER:
            self._agent.shims.send(worker, Ack())
            return
        if fault.is_of_a_device:
            self._strike_device(worker, fault)
        self._agent.keep(self._acknowledge(worker))

    def _kill_controller(self, fault: Fault) -> None:
        try:
            os.kill(json.loads(self._controller_file.read_bytes())["pid"], signal.SIGKILL)
        except (OSError, ValueError, KeyError) as e:
            log.error("%s cannot strike: the controller is not known here: %s", fault, e)

    async def _acknowledge(self, worker: WorkerId) -> None:
        """Answer the process once the controller has the report. The answer may end this agent too, so the report goes first."""
        await self._agent.session.told()
        self._agent.shims.send(worker, Ack())
