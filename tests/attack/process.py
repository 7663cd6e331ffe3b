"""A process that is attacked, and asked how it is."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from support.footprint import HANDS_BACK


class Controlled:
    """The process that is attacked, which `module` is; `ask` waits for the answer."""

    def __init__(self, process: asyncio.subprocess.Process, ports: dict[str, int]) -> None:
        self._process, self.ports = process, ports
        self._lock = asyncio.Lock()

    @classmethod
    async def start(cls, errors: Path, module: str = "attack.controlled") -> Controlled:
        here = Path(__file__).parents[1]
        environment = {**os.environ, **HANDS_BACK, "PYTHONPATH": str(here), "GRPC_VERBOSITY": "NONE"}
        with errors.open("wb") as stderr:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=stderr,
                env=environment,
                limit=1 << 24,
            )
        assert process.stdout is not None
        first = await asyncio.wait_for(process.stdout.readline(), 60)
        assert first, f"see {errors}"
        return cls(process, json.loads(first))

    async def ask(self, do: str, **more: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        async with self._lock:
            self._process.stdin.write(json.dumps({"do": do, **more}).encode() + b"\n")
            await self._process.stdin.drain()
            line = await asyncio.wait_for(self._process.stdout.readline(), 60)
        assert line, "the controller's process has ended"
        return json.loads(line)

    async def close(self) -> None:
        if self._process.returncode is None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                await asyncio.wait_for(self._process.wait(), 15)
            except asyncio.TimeoutError:
                self._process.kill()
                await self._process.wait()
