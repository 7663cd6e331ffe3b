"""The agent's side of a probe: starts it, takes its lines, and notices when it hangs or dies."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from torchrelay.agent.health.probes.source import Covered
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.messages import HealthSignal

log = logging.getLogger(__name__)

HANG_S = 5.0
"""A call into the driver counts as hanging after so long without a sign of life: five polls."""
GIVE_UP_S = 60.0
"""After so long the probe is ended, if the kernel lets it, and another one begins."""
END_S = 1.0
BACKOFF_S = 5.0
MAX_BACKOFF_S = 300.0
OK = "ok"
LINE_LIMIT_BYTES = 1 << 20


class ProbeProcess:
    """One probe. `tell(signals)`, `found(devices)`, `state(source, text)` and `covers(covered)` are called as its lines come."""

    def __init__(
        self,
        name: str,
        options: dict[str, Any],
        tell: Callable[[list[HealthSignal]], None],
        found: Callable[[list[dict[str, str]]], None],
        state: Callable[[str, str], None],
        hang_s: float = HANG_S,
        covers: Callable[[Covered], None] = lambda covered: None,
    ) -> None:
        self._name = name
        self._options = {"parent": os.getpid(), **options}
        self._hang_s = hang_s
        self._tell = tell
        self._found = found
        self._state = state
        self._covers = covers
        self.left: Covered = {}
        """What another source reads."""
        self._process: asyncio.subprocess.Process | None = None
        self._hanging_s = 0.0
        self._reads = False
        self._absent = ""

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    def leave(self, covered: Covered) -> None:
        """Leave the readings in `covered` to another source from now on, also after this probe was started anew."""
        if covered != self.left:
            self.left = covered
            self._order()

    def _order(self) -> None:
        process = self._process
        if process is not None and process.stdin is not None and process.returncode is None:
            process.stdin.write(json.dumps(self.left).encode() + b"\n")

    async def run(self) -> None:
        """Keep a probe running, until it says that there is no such device, or until cancelled."""
        backoff_s = BACKOFF_S
        while True:
            self._state(self._name, "starting")
            said, reason = await self._once()
            if self._absent:
                self._state(self._name, f"not present: {self._absent}")
                return
            self._state(self._name, f"dead: {reason}")
            self._tell([HealthSignal(k.SOURCE_DEAD, f"{self._name}{k.DRIVER}", detail=f"{self._name}: {reason}")])
            backoff_s = BACKOFF_S if said else min(backoff_s * 2, MAX_BACKOFF_S)
            await asyncio.sleep(backoff_s)

    async def _once(self) -> tuple[bool, str]:
        """Run one probe process to its end. Return whether it ever told anything, and how it ended."""
        self._reads = False
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "torchrelay.agent.health.probes.probe",
            self._name,
            json.dumps(self._options),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_LIMIT_BYTES,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        errors = asyncio.ensure_future(process.stderr.read())
        if self.left:
            self._order()
        said = False
        at_end = False
        reason = ""
        try:
            while (line := await self._line(process.stdout)) is not None:
                said = self._take(line) or said
            at_end = True
        except TimeoutError:
            reason = f"a call into the driver has not returned for {GIVE_UP_S:.0f} s"
        finally:
            if process.stdin is not None:
                process.stdin.close()  # else it is closed when nobody holds it any more, and that may be without an event loop
            ended = asyncio.ensure_future(process.wait())
            if not at_end or not (await asyncio.wait((ended,), timeout=END_S))[0]:
                _kill(process)
            # What hangs in the kernel does not end; it is left behind.
            for left in (
                await asyncio.wait((ended, asyncio.ensure_future(process.stdout.read()), errors), timeout=END_S)
            )[1]:
                left.cancel()
        if not reason:
            last = errors.result().decode("utf-8", "replace").strip().splitlines()[-1:] if errors.done() else []
            code = process.returncode or 0
            how = f"signal {-code}" if code < 0 else f"exit code {code}"
            reason = f"its process ended with {how}" + "".join(f": {text}" for text in last)
        return said, reason

    async def _line(self, stream: asyncio.StreamReader) -> bytes | None:
        """Return the next line, None at the stream's end. Raises TimeoutError when the probe hangs for good."""
        reading = asyncio.ensure_future(stream.readline())
        try:
            while not (await asyncio.wait((reading,), timeout=self._hang_s))[0]:
                self._hanging_s += self._hang_s
                self._hang(self._hanging_s)
                if self._hanging_s >= GIVE_UP_S:
                    raise TimeoutError
            line = reading.result()
        finally:
            reading.cancel()
        if self._hanging_s and line:
            self._hanging_s = 0.0
            self._hang(0.0)
            self._state(self._name, OK)
        return line or None

    def _hang(self, for_s: float) -> None:
        if for_s:
            self._state(self._name, f"dead: no answer for {for_s:.0f} s")
        detail = f"{self._name}: no answer for {for_s:.0f} s" if for_s else ""
        self._tell([HealthSignal(k.DRIVER_HANG, f"{self._name}{k.DRIVER}", value=for_s, detail=detail)])

    def _take(self, line: bytes) -> bool:
        try:
            values = json.loads(line)
            signals = [HealthSignal(**s) for s in values.get("signals", ())]
        except (ValueError, TypeError, AttributeError) as e:
            log.warning("%s: not a line of a probe: %.200r (%s)", self._name, line, e)
            return False
        if "absent" in values:
            self._absent = str(values["absent"])
        if "covers" in values:
            self._covers(values["covers"])
        if "devices" in values:
            self._found(values["devices"])
        if "signals" in values and not self._reads:
            self._reads = True  # what a counter did before its first reading is not known
            self._state(self._name, OK)
        if signals:
            self._tell(signals)
        return True


def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the process without Popen.

    Popen looks first whether the child has ended, and so takes the exit code away from asyncio.
    """
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
