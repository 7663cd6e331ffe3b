"""Protection on and off in turns within one run, so that a machine whose speed changes slows both alike.

Switched off, the engine takes no boundary, passes no gate and tells the agent nothing; what is left of the shim are calls that
find nothing to do. All ranks switch at the same steps. Nobody may be lost meanwhile: this is for measuring only.
"""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from typing import Any

from torchrelay.shim.instrument.rewrite import HOOKS


@dataclass
class _Switch:
    """What the engine's own functions were. The engine keeps it, so it is no state of the script, and the shim does not walk it."""

    take_boundary: Any
    gate: Any
    alive: Any
    steps: int = 0


def turn(block_steps: int) -> bool:
    """Return whether the next step is protected. To be called at the end of each step, from inside the training loop.

    Raises RuntimeError if the shim has given up for good: a measurement would mean nothing.
    """
    engine: Any = getattr(builtins, HOOKS).tracker().listener
    if not engine.capturing:
        raise RuntimeError("the shim has switched protection off")
    if not hasattr(engine, "bench_switch"):
        engine.bench_switch = _Switch(engine.take_boundary, engine.updates.gate.pass_protected, engine.alive)
    switch: _Switch = engine.bench_switch
    switch.steps += 1
    on = switch.steps // block_steps % 2 == 0
    engine.take_boundary = switch.take_boundary if on else lambda activation, number: _begin_unseen(engine)
    engine.updates.gate.pass_protected = switch.gate if on else lambda frame: _pass_unseen(engine)
    engine.alive = switch.alive if on else lambda: None
    return on


def _begin_unseen(engine: Any) -> bool:
    engine.start_step()
    return True


def _pass_unseen(engine: Any) -> None:
    engine.updates.gate.passed(engine.step.gates_passed + 1)
