"""Makes the engine of a process that is, or is to become, a rank, with all that its configuration asks for."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

from torchrelay.protocol.journals.kept import COPIES_AS_NEEDED
from torchrelay.protocol.options.faults import Fault
from torchrelay.shim.agent_link.config import ShimConfig
from torchrelay.shim.agent_link.link import AgentLink

if TYPE_CHECKING:
    from torchrelay.shim.bootstrap.standby import Standby
    from torchrelay.shim.capture.scripted_calls import ScriptedCalls
    from torchrelay.shim.journal.remote_copies import CopiedJournal
    from torchrelay.shim.observe.check_record import CheckProgress
    from torchrelay.shim.observe.fault_injection import FaultInjector
    from torchrelay.shim.observe.loss_watch import LossWatch
    from torchrelay.shim.set_up.recording import SetUp
    from torchrelay.shim.step.engine import Engine


class EngineMaker:
    """Makes engines. `set_up`: None where what it learns from outside is not recorded.

    `seen`: of a process of `torchrelay check`.
    """

    def __init__(
        self,
        config: ShimConfig,
        link: AgentLink,
        standby: Standby,
        set_up: SetUp | None,
        faults: tuple[Fault, ...],
        seen: CheckProgress | None,
        scripted: ScriptedCalls,
    ) -> None:
        self._config = config
        self._link = link
        self._standby = standby
        self._set_up = set_up
        self._faults = faults
        self._seen = seen
        self._scripted = scripted

    def journal(self) -> CopiedJournal:
        """Return a journal. Raises OSError, JournalError."""
        from torchrelay.shim.journal.remote_copies import CopiedJournal, RemoteJournalCopies

        folder = Path(self._config.journal)
        return CopiedJournal(folder, RemoteJournalCopies(self._link, self._config.worker, folder))

    def engine(self, rank: int, world_size: int, journal: CopiedJournal) -> Engine:
        """Return an engine. Raises what may go wrong while it is made."""
        from torchrelay.shim.bootstrap import torch_hooks
        from torchrelay.shim.observe.stand_for_check import CheckHold
        from torchrelay.shim.replicas.own_tensors import OwnTensors
        from torchrelay.shim.replicas.peer_checkpoints import PeerCheckpoints
        from torchrelay.shim.step.engine import Engine

        config = self._config
        engine = Engine(
            rank,
            world_size,
            config.address,
            self._link,
            journal,
            self._standby.tracker(),
            config.log,
            set_up=self._set_up,
            scripted=self._scripted,
            protection=config.protection,
        )
        engine.budget.limit_percent = config.cost_limit_percent
        keeps = bool(config.buddy_every and config.kept)
        kept = Path(config.kept)
        effects = engine.updates.effects
        held = engine.gradients
        engine.equip(
            hold=CheckHold(engine, config.hold_at, self._seen) if self._seen is not None else None,
            keeper=PeerCheckpoints(engine, config.buddy_every, kept, sync=config.buddy_sync) if keeps else None,
            own=OwnTensors(
                engine,
                kept,
                held.tensors,
                held.tensors_now,
                effects.latest,
                open_gradients=held.open_now,
                is_limited=config.cost_limit_percent > 0,
            )
            if keeps and config.buddy_every == COPIES_AS_NEEDED
            else None,
            numbers=self._numbers(engine),
            faults=self._injector(engine, journal),
        )
        torch_hooks.install_for(engine)
        return engine

    def _numbers(self, engine: Engine) -> LossWatch | None:
        if not self._config.watches:
            return None
        from torchrelay.shim.observe.loss_watch import LossWatch

        engine.replicas.every = max(w.every for w in self._config.watches)
        return LossWatch(engine, self._config.watches)

    def _injector(self, engine: Engine, journal: CopiedJournal) -> FaultInjector | None:
        if not self._faults:
            return None
        from torchrelay.shim.observe.fault_injection import FaultInjector, wait_alone

        in_vain = functools.partial(wait_alone, engine.rank, engine.world_size, engine.waiting)
        return FaultInjector(self._faults, self._link, engine.step_now, in_vain, journal.waited_s)


def go_live(engine: Engine) -> None:
    """Let loops count from the first process group on: in a process that joins as in the rank that was lost."""
    engine.tracker.listener = engine.way_in or engine
    engine.draws.live = True
    engine.tracker.live = True


def look_at_device(engine: Engine) -> None:
    """Begin to look at the device, once it is known which libraries the rank's groups use."""
    from torchrelay.shim.observe.device_waits import DeviceWaits
    from torchrelay.shim.observe.failed_communicators import FailedCommunicators

    if engine.comms.have_device():
        failed = FailedCommunicators(engine.comms, engine.link)
        DeviceWaits(engine.journal, engine.comms, failed.look).start()
