"""What a rank that stays and one that joins do alike: exchange the communicators, prove it, and begin to count."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from torchrelay.protocol.messages import Plan, Rebuild, Rebuilt, Verified
from torchrelay.shim.adapters.parallel import fsdp2
from torchrelay.shim.comm import pipelining

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine


def _nothing() -> None:
    """Where one of both has nothing to do."""


def rebuild(
    engine: Engine,
    order: Rebuild,
    inject: Callable[[str], None],
    *,
    prepare: Callable[[], None] = _nothing,
    connected: Callable[[], None] = _nothing,
    verified: Callable[[], None] = _nothing,
    joins: bool = False,
) -> None:
    """Exchange the communicators, prove that all ranks are in the new ones, and say each to the controller.

    `inject(phase)` strikes with the fault that a user has ordered for that phase. `prepare`: what comes before the exchange.
    `connected`, `verified`: what comes before the controller hears of it. Raises what these do; RuntimeError where peers do not
    come, or the generation is broken meanwhile.
    """
    started_s = time.monotonic()
    inject("rebuild")
    prepare()
    fsdp2.reset()
    pipelining.reset(order.target)
    engine.comms.rebuild(
        order.generation, order.store_host, order.store_port, order.gate_secret, engine.recovery.is_over, joins=joins
    )
    connected()
    engine.link.send(Rebuilt(order.generation, time.monotonic() - started_s))
    inject("verify")
    engine.comms.gate(order.target)  # raises unless all ranks of the generation go to the same boundary
    verified()
    engine.link.send(Verified(order.generation))


def commit(engine: Engine, generation: int, plan: Plan, back_to: Mapping[str, int] | None = None) -> None:
    """From here on this generation counts. `back_to`: as in AsyncSaves.entered."""
    engine.comms.committed()
    engine.comms.now.number = generation
    engine.journal.generation = generation
    engine.updates.gate.expect_first_step()
    engine.replicas.migrated(plan.target)
    if engine.keeper is not None:
        engine.keeper.entered(generation, plan.target, from_copy=bool(plan.kept))
    engine.saves.entered(generation, back_to, has_communicators=not plan.offline)
