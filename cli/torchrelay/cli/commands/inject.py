"""`torchrelay inject`: hands over to the part that knows pods."""

from __future__ import annotations

import subprocess
import sys


def inject(arguments: list[str]) -> int:
    """The exit code: 0 done, 2 the manifest or its annotations cannot be meant."""
    return subprocess.run([sys.executable, "-m", "torchrelay.webhook.offline", *arguments], check=False).returncode
