"""Faults of `--inject` that strike a device: what the fake machine shows of each."""

from __future__ import annotations

import asyncio
import os
import signal

from torchrelay.agent.fake_machine.machine import FakeMachine
from torchrelay.protocol.options.faults import Fault, FaultKind

SECOND_FLAP_S = 2.0
HOT_C = 89
"""One degree below where the fake GPU slows itself down."""
NVLINK_LINE = "NVLink: fatal error detected on link 2(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"
ECC_LINE = "pid=1, name=python, DBE (double bit error)"


def strike(machine: FakeMachine, fault: Fault, gpu: int, pid: int) -> None:
    """`gpu`: of the rank that was named; `pid`: its process."""
    if fault.kind is FaultKind.XID:
        machine.xid(gpu, fault.code)
    elif fault.kind is FaultKind.ECC:
        machine.xid(gpu, 48, ECC_LINE)
        machine.add(gpu, "ecc-uncorrected", 1)
    elif fault.kind is FaultKind.THERMAL:
        machine.set(gpu, "temperature", HOT_C)
    elif fault.kind is FaultKind.NVLINK:
        machine.xid(gpu, 74, NVLINK_LINE)
    elif fault.kind is FaultKind.IB_FLAP:
        machine.count(gpu, "counters/link_downed", 1)
        asyncio.get_running_loop().call_later(SECOND_FLAP_S, machine.count, gpu, "counters/link_downed", 1)
    elif fault.kind is FaultKind.OOM:
        machine.say(f"oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),task=python,pid={pid},uid=0")
        os.kill(pid, signal.SIGKILL)
