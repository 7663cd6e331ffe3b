"""Tells whether a device may be used again. It looks at the device afresh, by new processes, in the way that the sources do."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from torchrelay.agent.health.probes.places import DCGM
from torchrelay.protocol.messages import DeviceChecked, HealthSignal

LOOKS = 4
LOOK_S = 0.5
LIMIT_S = 30.0


async def check(node: str, sources: Mapping[str, dict[str, Any]], subject: str) -> DeviceChecked:
    """Look at a device, or at all devices.

    `sources`: name -> options of its probe; `subject`: a device, or `node`, which is all of its devices.
    The word of a dcgm-exporter can be old, and does not count where the driver can be asked. Every source has to answer.
    """
    seen = []
    missing = []
    found = False
    for name, options in sources.items():
        if name == DCGM and "nvidia" in sources:
            continue
        try:
            devices, signals = await asyncio.wait_for(_look(name, options), LIMIT_S)
        except TimeoutError:
            missing.append(f"{name} does not answer")
            continue
        except _NotReadError as e:
            missing.append(f"{name} cannot be read: {e}")
            continue
        found = found or subject in devices or bool(devices and subject == node)
        seen += [s for s in signals if subject in (s.device, node)]
    if not found or missing:
        return DeviceChecked(subject, False, "; ".join(missing) or "no source knows it", tuple(seen))
    return DeviceChecked(subject, True, f"it was looked at {LOOKS} times in {LOOKS * LOOK_S:g} s", tuple(seen))


class _NotReadError(Exception):
    """A source cannot be read; the text is the source's own."""


async def _look(name: str, options: dict[str, Any]) -> tuple[list[str], list[HealthSignal]]:
    """Return the devices of a source, and what it tells of them: levels that are not healthy, counters that move meanwhile."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "torchrelay.agent.health.probes.probe",
        name,
        json.dumps(options | {"parent": os.getpid(), "poll_s": LOOK_S, "check": True}),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=1 << 20,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.ensure_future(process.stderr.read())
    devices: list[str] = []
    signals: list[HealthSignal] = []
    looks = 0
    try:
        while looks < LOOKS:
            line = await process.stdout.readline()
            if not line:
                last = (await errors).decode("utf-8", "replace").strip().splitlines()[-1:]
                raise _NotReadError(last[0] if last else "its process ended")
            values = json.loads(line)
            if "absent" in values:
                return [], []
            devices += [d["device"] for d in values.get("devices", ())]
            signals += [HealthSignal(**s) for s in values.get("signals", ())]
            looks += "signals" in values
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        errors.cancel()
        await asyncio.wait((asyncio.ensure_future(process.wait()),), timeout=1.0)
    return devices, signals
