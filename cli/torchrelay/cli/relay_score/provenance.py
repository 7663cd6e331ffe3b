"""What a score was made with: commit, versions, machine."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

_ALWAYS = ("torch", "torchrelay", "numpy")


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of Python and of the packages that are installed."""
    found = {"python": platform.python_version()}
    for name in dict.fromkeys([*_ALWAYS, *packages]):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def processors() -> int:
    return os.cpu_count() or 1


def commit(folder: Path) -> str:
    """Return the commit of the checkout that `folder` is in, with `+changes` if it is not clean; empty outside of a checkout."""
    head = _git(folder, "rev-parse", "--short=12", "HEAD")
    if not head:
        return ""
    return f"{head}+changes" if _git(folder, "status", "--porcelain", "--untracked-files=no") else head


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
