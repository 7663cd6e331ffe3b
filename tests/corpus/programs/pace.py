"""How fast the programs get on: a step of real training takes its time."""

import os
import time

STEP_S = float(os.environ.get("CORPUS_STEP_S", "0.02"))
HOLD = os.environ.get("CORPUS_HOLD", "")


def work():
    """Once a step. Waits for as long as the file CORPUS_HOLD is there, as training waits for a slow disk."""
    time.sleep(STEP_S)
    while HOLD and os.path.exists(HOLD):
        time.sleep(0.01)
