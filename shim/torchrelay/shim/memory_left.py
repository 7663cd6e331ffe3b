"""Whether this machine, or the container that this process lives in, is about to run out of memory."""

from __future__ import annotations

from pathlib import Path

SHORT_SHARE = 0.08
"""Below this share of what there is, nothing may be tried beside training."""


def is_short(meminfo: Path = Path("/proc/meminfo"), cgroup: Path = Path("/sys/fs/cgroup")) -> bool:
    """Where nothing can be read, it is not."""
    return any(left < SHORT_SHARE * whole for left, whole in (_of_machine(meminfo), _of_container(cgroup)) if whole)


def _of_machine(meminfo: Path) -> tuple[int, int]:
    """Bytes left, and in all; 0 and 0 where that is not known."""
    try:
        fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        return int(fields["MemAvailable"].split()[0]) << 10, int(fields["MemTotal"].split()[0]) << 10
    except (OSError, KeyError, ValueError, IndexError):
        return 0, 0


def _of_container(cgroup: Path) -> tuple[int, int]:
    try:
        whole = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        return whole - used + int(stat["inactive_file"]), whole
    except (OSError, KeyError, ValueError):  # no limit reads as `max`
        return 0, 0
