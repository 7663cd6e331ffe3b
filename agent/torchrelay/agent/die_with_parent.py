"""Run by path, as `python -I -S die_with_parent.py PARENT COMMAND...`: becomes COMMAND, which dies with its parent.

For a process that is started once the agent has threads: whatever runs between fork and exec must find no lock held, so
nothing of Python may run there. What is set here stays over the exec. Standard library only, and nothing of ours.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_EXIT_WHEN_ORPHANED = 125


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        sys.exit(_EXIT_WHEN_ORPHANED)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
