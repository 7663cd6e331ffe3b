"""Where the control group of this process keeps its files, which the workers share.

Leans on cgroup v1 and v2 (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/).
"""

from __future__ import annotations

from pathlib import Path


def cgroup_file(root: Path, proc: Path, controller: str, v2_name: str, v1_name: str) -> Path | None:
    """`root`: where control groups are mounted; `proc`: /proc/PID/cgroup; None where there is no such file."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        number, controllers, path = line.split(":", 2)
        if number == "0":
            candidate = root / path.lstrip("/") / v2_name
        elif controller in controllers.split(","):
            candidate = root / controller / path.lstrip("/") / v1_name
        else:
            continue
        # In a container the path is the host's, and what is mounted is the container's own group.
        for file in (candidate, root / v2_name, root / controller / v1_name):
            if file.exists():
                return file
    return None
