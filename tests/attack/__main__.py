"""`make attack`: ATTACK_SEED repeats the draws, ATTACK names the only parts that are done, `--short` does less of each."""

from __future__ import annotations

import asyncio
import logging
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
from attack.tally import Tally

SEED = int(os.environ.get("ATTACK_SEED", random.SystemRandom().randrange(1_000_000)))
PARTS = ("cluster", "sides", "orders", "machine")


def main() -> int:
    """1 if somebody was hurt; the folder is then kept. 2 for a part that there is not."""
    parts = os.environ.get("ATTACK", "").split() or PARTS
    if unknown := sorted({*parts} - {*PARTS}):
        print(f"there is no part {' '.join(unknown)}; there are {', '.join(PARTS)}", file=sys.stderr)
        return 2
    print(f"ATTACK_SEED={SEED}", flush=True)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)  # gRPC's client leaves tasks to a stream that has ended
    folder, tally = Path(tempfile.mkdtemp(prefix="attack-")), Tally()
    extent = SHORT if "--short" in sys.argv else LONG
    if "cluster" in parts:
        asyncio.run(attack_cluster(folder, extent, SEED, tally))
    if "sides" in parts:
        asyncio.run(attack_sides(folder, extent, SEED, tally))
    if "orders" in parts:
        asyncio.run(attack_orders(folder, 5 if extent is SHORT else 100, SEED, tally))
    if "machine" in parts:
        attack_machine(folder, 2 if extent is SHORT else 6, SEED, tally)
    print(tally.told(), flush=True)
    if tally.wrong:
        print(f"NOT withstood: see {folder}", flush=True)
        return 1
    shutil.rmtree(folder)
    return 0


sys.exit(main())
