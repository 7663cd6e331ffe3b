"""What a process does, as the letter in /proc/PID/stat says: where it cannot go on by itself."""

from __future__ import annotations

STOPPED = "T"
ZOMBIE = "Z"
GONE = "gone"
"""`GONE`: there is no such process any more. Whoever was started as a command of its own is seen to end otherwise, and at once."""
CANNOT_GO_ON = {
    STOPPED: "has been stopped (state T)",
    ZOMBIE: "is dead, and its parent has not noticed (state Z),",
    GONE: "is gone, while the command that started it goes on,",
}
"""In words that follow its name."""
