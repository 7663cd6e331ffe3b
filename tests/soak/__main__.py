"""`make soak`: SOAK_S (1800) seconds of faults, a part of them for each job that there is; SOAK_SEED repeats their draws.

SOAK_MACHINES (1 or 2), SOAK_MODE (spares or ladder): only these.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from soak.job import soak
from soak.shapes import MODES, shape
from support.network import why_not

SECONDS = float(os.environ.get("SOAK_S", "1800"))
MACHINES = os.environ.get("SOAK_MACHINES", "")
MODE = os.environ.get("SOAK_MODE", "")
SEED = int(os.environ.get("SOAK_SEED", random.SystemRandom().randrange(1_000_000)))


def main() -> int:
    """1 if a job did not end as the undisturbed one, or something was left behind; its folder is then kept."""
    if MACHINES not in ("", "1", "2") or MODE not in ("", *MODES):
        print(f"SOAK_MACHINES is 1 or 2, SOAK_MODE {' or '.join(MODES)}", file=sys.stderr)
        return 2
    if uncut := why_not():
        print(f"machines are not cut off from one another: {uncut}", flush=True)
    modes = [mode for name, mode in MODES.items() if MODE in ("", name)]
    shapes = [shape(n, mode, not uncut) for n in (1, 2) if MACHINES in ("", str(n)) for mode in modes]
    good = True
    for each in shapes:
        print(f"SOAK_SEED={SEED} SOAK_S={SECONDS:g}: {each.name}, {each.world_size} ranks", flush=True)
        folder = Path(tempfile.mkdtemp(prefix="soak-"))
        ended = soak(folder, each, SECONDS / len(shapes), SEED)
        print(ended.told(), flush=True)
        if ended.good:
            print("bitwise as the undisturbed run, and nothing is left", flush=True)
            shutil.rmtree(folder)
        else:
            good = False
            print(f"NOT as the undisturbed run, or something is left: see {folder}", flush=True)
    return 0 if good else 1


sys.exit(main())
