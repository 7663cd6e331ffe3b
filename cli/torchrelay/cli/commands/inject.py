"""`torchrelay inject`: hands over to the part that knows pods."""

from __future__ import annotations

import subprocess
import sys


def inject(arguments: list[str]) -> int:
    """Run the injection. Return the exit code: 0 done, 2 the manifest or its annotations make no sense."""
    return subprocess.run([sys.executable, "-m", "torchrelay.webhook.offline", *arguments], check=False).returncode
