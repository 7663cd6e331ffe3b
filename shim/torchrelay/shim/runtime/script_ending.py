"""The script has ended, or failed, in a process that is a rank: others may still need what it holds."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from torchrelay.protocol.messages import Finishing
from torchrelay.protocol.words.positions import RankPhase, StandingPosition
from torchrelay.shim.agent_link.config import ShimConfig
from torchrelay.shim.agent_link.link import AgentLink
from torchrelay.shim.bootstrap import failed_script

if TYPE_CHECKING:
    from torchrelay.shim.join.joiner import Joiner
    from torchrelay.shim.join.rehearsal import Rehearsal
    from torchrelay.shim.step.engine import Engine


def failed(
    failure: BaseException,
    config: ShimConfig,
    link: AgentLink,
    may_finish: threading.Event,
    engine: Engine | None,
    joiner: Joiner | Rehearsal | None,
) -> None:
    """Report that the script has failed. `engine`, `joiner`: None in a process that has none.

    `may_finish`: set when the controller lets it end.
    """
    if engine is not None:
        from torchrelay.shim.observe import lost_device

        lost_device.end_if_lost(engine, failure)
        failure = engine.unprotected.behind(failure)
    if joiner is not None:
        joiner.failed(failure)
    boundary = engine.commit.boundary if engine is not None and engine.commit is not None else -1
    failed_script.tell(link, failure, boundary)
    if config.asks and engine is not None:
        failed_script.await_verdict(config.launch, may_finish)


def ended(engine: Engine, link: AgentLink, may_finish: threading.Event) -> None:
    """Return when no process needs this rank's state any more. Until then it takes part in migrations."""
    engine.step.ended_script()
    engine.updates.look_no_more()
    engine.journal.boundary = engine.step.gates_passed
    engine.phase(RankPhase.FINISHED)
    link.send(Finishing(engine.step.gates_passed))
    if engine.commit is None:
        may_finish.wait()
        return
    while True:
        engine.recovery.wait_until(may_finish.is_set)
        if may_finish.is_set():
            return
        engine.recovery.stand(StandingPosition.FINISHED, None)
