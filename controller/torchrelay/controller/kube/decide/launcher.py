"""A launcher is there (torchrun): does it meet the others as always, or does the job train without it?"""

from __future__ import annotations

from torchrelay.protocol.messages import LaunchReply

NONE = "none"
OVER = "over"
STARTS = "starts"
TAKEN_OVER = "taken-over"
TRAINS = "trains"
BEGINS_AGAIN = "begins-again"
UNPROTECTED = "unprotected"
"""What is known of its job: no process of it; ended, while its pod was there already; some that are not protected yet; some
of which a controller that is new to them asks what they are; all protected; ended, to begin again, if they can; not protected
for good."""

_PARKS = {
    OVER: "its job is over, and what it starts ends as that did",
    TAKEN_OVER: "its job trains",
    TRAINS: "its job trains",
    BEGINS_AGAIN: "its job begins again",
}
_BEGINS = {
    NONE: "its job has not begun",
    STARTS: "its job is just beginning",
    UNPROTECTED: "its job is not protected",
}


def judge_launcher(state: str, in_spare: bool) -> LaunchReply:
    if in_spare:
        return LaunchReply(True, "it is in a spare's pod")
    if state in _PARKS:
        return LaunchReply(True, _PARKS[state])
    return LaunchReply(False, _BEGINS[state])
