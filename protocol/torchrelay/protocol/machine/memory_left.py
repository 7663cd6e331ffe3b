"""Whether this machine, or the container that this process lives in, has memory for what may be tried beside training."""

from __future__ import annotations

from pathlib import Path

SHORT_SHARE = 0.08
"""Below this share of what there is, nothing may be tried beside training."""
_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")
_PROC = Path("/proc")


def is_short(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> bool:
    """Return whether memory is short. If nothing can be read, it is not."""
    return bool(no_room_for(0, meminfo, cgroup))


def no_room_for(size_bytes: int, meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> str:
    """Return why taking `size_bytes` more would make memory short; empty if it would not, or if nothing can be read."""
    for what, (left, whole) in (("machine", _of_machine(meminfo)), ("container", _of_container(cgroup))):
        if whole and left - size_bytes < SHORT_SHARE * whole:
            needed = f", and {_shown(size_bytes)} may be needed" if size_bytes else ""
            return f"{_shown(max(left, 0))} of memory are left on this {what}{needed}"
    return ""


def taken_by(pid: int, proc: Path = _PROC) -> int:
    """Return the bytes of memory that the process has for itself, without files; 0 if that cannot be read."""
    try:
        fields = dict(line.split(":", 1) for line in (proc / str(pid) / "status").read_text().splitlines())
        return int(fields["RssAnon"].split()[0]) << 10
    except (OSError, KeyError, ValueError, IndexError):
        return 0


def _shown(size_bytes: int) -> str:
    return f"{size_bytes / 2**30:.1f} GiB"


def _of_machine(meminfo: Path) -> tuple[int, int]:
    """Return the bytes that are left, and the total; 0 and 0 if that is not known."""
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
