"""`make soak`: SOAK_S (1800) seconds of faults, half of them on one machine and half on two; SOAK_SEED repeats their draws.

SOAK_MACHINES (1 or 2): all of them on so many.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from soak.job import ONE_MACHINE, TWO_MACHINES, soak

SECONDS = float(os.environ.get("SOAK_S", "1800"))
MACHINES = os.environ.get("SOAK_MACHINES", "")
SEED = int(os.environ.get("SOAK_SEED", random.SystemRandom().randrange(1_000_000)))


def main() -> int:
    """1 if a job did not end as the undisturbed one, or something was left behind; its folder is then kept."""
    shapes = [shape for shape in (ONE_MACHINE, TWO_MACHINES) if MACHINES in ("", str(shape.machines))]
    if not shapes:
        print(f"SOAK_MACHINES={MACHINES}: a job of 1 or of 2 machines can be struck", file=sys.stderr)
        return 2
    good = True
    for shape in shapes:
        print(f"SOAK_SEED={SEED} SOAK_S={SECONDS:g}: {shape.name}, {shape.world_size} ranks", flush=True)
        folder = Path(tempfile.mkdtemp(prefix="soak-"))
        ended = soak(folder, shape, SECONDS / len(shapes), SEED)
        print(ended.told(), flush=True)
        if ended.good:
            print("bitwise as the undisturbed run, and nothing is left", flush=True)
            shutil.rmtree(folder)
        else:
            good = False
            print(f"NOT as the undisturbed run, or something is left: see {folder}", flush=True)
    return 0 if good else 1


sys.exit(main())
