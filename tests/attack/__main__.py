"""`make attack`: ATTACK_SEED repeats the draws."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

from attack.cluster import LONG, SHORT, attack_cluster
from attack.machine import attack_machine
from attack.orders import attack_orders
from attack.side_ports import attack_sides

SEED = int(os.environ.get("ATTACK_SEED", random.SystemRandom().randrange(1_000_000)))


def main() -> int:
    """1 if somebody was hurt; the folder is then kept."""
    print(f"ATTACK_SEED={SEED}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix="attack-"))
    extent = SHORT if "--short" in sys.argv else LONG
    tally = asyncio.run(attack_cluster(folder, extent, SEED))
    asyncio.run(attack_sides(folder, extent, SEED, tally))
    asyncio.run(attack_orders(folder, 5 if extent is SHORT else 100, SEED, tally))
    attack_machine(folder, 2 if extent is SHORT else 6, SEED, tally)
    print(tally.told(), flush=True)
    if tally.wrong:
        print(f"NOT withstood: see {folder}", flush=True)
        return 1
    shutil.rmtree(folder)
    return 0


sys.exit(main())
