"""Where a test wants a say in how fast the script gets on."""

import os
import signal
import time

STEP_S = 0.015
"""A planned migration stops a few tenths of a second ahead: with steps of microseconds, that were the whole run."""


def work():
    time.sleep(STEP_S)


def hold(step):
    """Waits at the steps of HOLD_STEPS until HOLD_FOLDER/STEP is there: a test lets the job pass when its migration is ready."""
    if str(step) in os.environ.get("HOLD_STEPS", "").split(","):
        gate = os.path.join(os.environ["HOLD_FOLDER"], str(step))
        while not os.path.exists(gate):
            time.sleep(0.01)


def strike(place):
    """Ends this process with SIGKILL, once, if the test wants it here: STRIKE=PLACE:RANK, with a file for the memory of it."""
    if os.environ.get("STRIKE") == f"{place}:{os.environ['RANK']}":
        try:
            os.close(os.open(os.environ["STRUCK"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)


def fail(step):
    """Raises in a step of a rank, if the test wants it: FAIL_IN_STEP=RANK:STEP."""
    if os.environ.get("FAIL_IN_STEP") == f"{os.environ['RANK']}:{step}":
        raise ZeroDivisionError("the script's own mistake")
