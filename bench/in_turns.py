"""Protection on and off in turns within one run, so that a machine whose speed changes slows both alike.

Switched off, the engine takes no boundary, passes no gate and tells the agent nothing; what is left of the shim are calls that
find nothing to do. All ranks switch at the same steps. Nobody may be lost meanwhile: this is for measuring only.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from torchrelay.shim.instrument import HOOKS


def switch(block_steps: int) -> Callable[[int], bool]:
    """`turn(step)`, from inside of the training loop at the end of each step: whether the next one is protected.

    The kept values are in closures and not in an object: functions are not state, so that the shim does not walk what measures it.
    """
    kept: dict[str, Any] = {}

    def turn(step: int) -> bool:
        engine: Any = getattr(builtins, HOOKS).tracker().listener
        if not kept:
            kept.update(take_boundary=engine.take_boundary, gate=engine.updates.gate, alive=engine.alive)
        on = (step // block_steps) % 2 == 0
        engine.take_boundary = kept["take_boundary"] if on else lambda activation, number: engine._start_step()
        engine.updates.gate = kept["gate"] if on else lambda frame: _pass_unseen(engine)
        engine.alive = kept["alive"] if on else lambda: None
        return on

    return turn


def _pass_unseen(engine: Any) -> None:
    engine.updates.passed(engine.gates_passed + 1)
    engine.position = "update"
