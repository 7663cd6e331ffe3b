"""Where a test wants a say in how fast the script gets on."""

import os
import signal
import time

STEP_S = float(os.environ.get("STEP_S", "0.015"))
"""A planned migration stops a few tenths of a second ahead: with steps of microseconds, that were the whole run."""
HURRY = os.environ.get("HURRY", "")


def work():
    """Once this file is there, steps take no longer than they have to."""
    if not os.path.exists(HURRY):
        time.sleep(STEP_S)


def hold(step):
    """Waits at the steps of HOLD_STEPS until HOLD_FOLDER/STEP is there: a test lets the job pass when its migration is ready."""
    if str(step) in os.environ.get("HOLD_STEPS", "").split(","):
        mark("held", step, os.environ["RANK"])
        wait_for(step)
    rank, at, code = os.environ.get("LEAVE", "::").split(":")
    if (os.environ.get("RANK"), str(step)) == (rank, at):
        if code == "raise":
            raise RuntimeError("told to fail")
        os._exit(int(code))  # LEAVE=RANK:STEP:CODE
    if os.environ.get("STAND_STILL") == f"{os.environ.get('RANK')}:{step}":
        os.kill(os.getpid(), signal.SIGSTOP)  # STAND_STILL=RANK:STEP


def strike(place):
    """Ends this process with SIGKILL, once, if the test wants it here: STRIKE=PLACE:RANK, with a file for the memory of it."""
    if os.environ.get("STRIKE") == f"{place}:{os.environ['RANK']}":
        _die_once()


def _die_once():
    try:
        os.close(os.open(os.environ["STRUCK"], os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


def arrive(step):
    """Tells those who wait in `behind_gate` or `behind_others` that this rank is about to begin the forward of `step`."""
    if "LOSE_BEHIND_GATE" in os.environ or "LOSE_BEHIND_OTHERS" in os.environ:
        mark("arrived", os.environ["RANK"], step)


def behind_gate(step):
    """Between the gate and the update, in the order that a test wants: LOSE_BEHIND_GATE=RANK:STEP:RANKS-THAT-GO-ON.

    In STEP, RANK dies when every other rank has passed the gate too, and those that go on (such as `0,2`) are about to
    begin the next forward. The others wait in front of their update until it is dead.
    """
    lost, at, ahead = os.environ.get("LOSE_BEHIND_GATE", "::").split(":")
    rank, ahead = os.environ["RANK"], ahead.split(",")
    if str(step) != at or os.path.exists(os.environ["STRUCK"]):
        return
    if rank == lost:
        for other in map(str, range(int(os.environ["WORLD_SIZE"]))):
            if other != lost:
                wait_for(*(("arrived", other, step + 1) if other in ahead else ("passed", other, step)))
        _die_once()
    else:
        mark("passed", rank, step)
        if rank not in ahead:
            _wait_for_file(os.environ["STRUCK"])


def behind_others(step):
    """LOSE_BEHIND_OTHERS=RANK:STEP: in front of STEP, RANK dies when all others are in it."""
    rank, at = os.environ.get("LOSE_BEHIND_OTHERS", ":").split(":")
    if (os.environ["RANK"], str(step)) == (rank, at) and not os.path.exists(os.environ["STRUCK"]):
        for other in map(str, range(int(os.environ["WORLD_SIZE"]))):
            if other != rank:
                wait_for("arrived", other, step)
        _die_once()


def let_one_be_first(step):
    """FIRST_IN_UPDATE=RANK:STEP, EVENTS=FILE: others do not begin the update of STEP before RANK was struck in it."""
    rank, at = os.environ.get("FIRST_IN_UPDATE", ":").split(":")
    if str(step) == at and os.environ["RANK"] != rank:
        with open(os.environ["EVENTS"], encoding="utf-8") as events:
            told = ""
            while '"fault_injected"' not in told:
                told = told.rpartition("\n")[2] + events.read()  # what was half a line goes on here
                time.sleep(0.002)


def _place(*what):
    return os.path.join(os.environ["HOLD_FOLDER"], "-".join(map(str, what)))


def mark(*what):
    os.close(os.open(_place(*what), os.O_CREAT))


def wait_for(*what):
    _wait_for_file(_place(*what))


def _wait_for_file(path):
    while not os.path.exists(path):
        time.sleep(0.01)


def fail(step):
    """Raises in a step of a rank, if the test wants it: FAIL_IN_STEP=RANK:STEP."""
    if os.environ.get("FAIL_IN_STEP") == f"{os.environ['RANK']}:{step}":
        raise ZeroDivisionError("the script's own mistake")
