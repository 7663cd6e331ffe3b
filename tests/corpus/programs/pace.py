"""How fast the programs get on: a step of real training takes its time."""

import os
import signal
import time

STEP_S = float(os.environ.get("CORPUS_STEP_S", "0.02"))
HOLD = os.environ.get("CORPUS_HOLD", "")


def work():
    """Once a step. Waits for as long as the file CORPUS_HOLD is there, as training waits for a slow disk."""
    time.sleep(STEP_S)
    while HOLD and os.path.exists(HOLD):
        time.sleep(0.01)


def strike(place):
    """In the middle of `place`: an accident, once, if CORPUS_STRIKE=PLACE:RANK:SIGNAL:FILE wants one; FILE remembers it."""
    wanted = os.environ.get("CORPUS_STRIKE", "").split(":", 3)
    if wanted[0] == place and wanted[1] == os.environ["RANK"]:
        try:
            os.close(os.open(wanted[3], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), getattr(signal, wanted[2]))
