"""Run by path, as `python -I -S die_with_parent.py PARENT NICENESS COMMAND...`: becomes COMMAND, which dies with its parent.

With a niceness above 0 it is also the first to be ended when memory gets short.

For a process that is started once the agent has threads: whatever runs between fork and exec must find no lock held, so
nothing of Python may run there. What is set here stays over the exec. Standard library only, and nothing of ours.
"""

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_EXIT_WHEN_ORPHANED = 125
_FIRST_TO_GO = "1000"


def main() -> None:
    parent = int(sys.argv[1])
    niceness = int(sys.argv[2])
    command = sys.argv[3:]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        sys.exit(_EXIT_WHEN_ORPHANED)
    if niceness:
        os.nice(niceness)
        with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
            file.write(_FIRST_TO_GO)  # where that is not allowed, whoever looks at the memory is what there is
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
