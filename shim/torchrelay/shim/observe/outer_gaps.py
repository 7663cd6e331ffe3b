"""Gaps that no object of the script's makes: what set-up learns from outside, and in which order functions were compiled."""

from __future__ import annotations

from torchrelay.protocol.messages import Gap
from torchrelay.protocol.names import BARS, LEFT
from torchrelay.shim.adapters import dynamo
from torchrelay.shim.set_up.recording import SetUp


def outside(set_up: SetUp | None) -> list[Gap]:
    """Return the gaps of what set-up learns from outside. `set_up`: None where it is not recorded."""
    if set_up is None:
        text = "what set-up draws without a seed and asks of the system cannot be recorded with this Python"
        return [Gap("outside", LEFT, text)]
    found = [Gap("outside", BARS, f"{set_up.lost}: no rank can be replaced")] if set_up.lost else []
    for name in set_up.gone():
        found.append(
            Gap("outside", BARS, f"{name}: set-up reads it, and it is not there any more: no rank can be replaced")
        )
    if set_up.finds_more:
        text = (
            "set-up looks for more files than are kept in mind: a new process may find some that the job has made since"
        )
        found.append(Gap("outside", LEFT, text))
    return found


def compiled() -> list[Gap]:
    file, line, name = dynamo.compiled_for_all_sizes()
    if not file:
        return []
    text = (
        f"{file}:{line}: {name} was compiled for one size and then for all of them: a new process would compile it in another "
        "order, and round differently: no rank can be replaced"
    )
    return [Gap("compiled", BARS, text, file, line)]
