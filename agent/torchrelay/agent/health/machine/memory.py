"""Tells whether the kernel killed a process because memory ran out, and whose fault that was, by the counters of its control group.

Leans on cgroup v2's memory.events and v1's memory.oom_control (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst).
"""

from __future__ import annotations

from pathlib import Path

from torchrelay.agent.health.machine.cgroup import cgroup_file
from torchrelay.protocol.health import kinds as k


class MemoryLimit:
    """The control group of this process, which the workers share. `root`: where control groups are mounted."""

    def __init__(self, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc/self/cgroup")) -> None:
        self._file = cgroup_file(root, proc, "memory", "memory.events", "memory.oom_control")
        self._known = self._read()

    def killed(self) -> str:
        """Return the kind of evidence if the kernel has killed for memory since the last call, else an empty text."""
        before = self._known
        self._known = self._read()
        if self._known.get("oom_kill", 0) <= before.get("oom_kill", 0):
            return ""
        hit_its_limit = "oom" not in self._known or self._known["oom"] > before.get("oom", 0)
        return k.OOM_PROGRAM if hit_its_limit else k.OOM_NODE

    def _read(self) -> dict[str, int]:
        if self._file is None:
            return {}
        try:
            pairs = (line.split() for line in self._file.read_text().splitlines())
            return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
        except OSError:
            return {}
