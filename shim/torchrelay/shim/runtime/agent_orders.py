"""What the agent tells this process, on the link's thread: followed here, or handed to the engine once there is one."""

from __future__ import annotations

import os
import platform
import threading
from typing import TYPE_CHECKING

from torchrelay.protocol.kube.gpu_selection import selection_of
from torchrelay.protocol.messages import (
    Ack,
    Assign,
    Begin,
    ClearCheckpoints,
    EndNow,
    EndRehearsal,
    Explain,
    Hello,
    MayFinish,
    MigrationOrder,
    Ping,
    Pong,
    Protect,
    Rehearse,
    SetAside,
    ShimOrder,
)
from torchrelay.shim.agent_link import announced_exit, start_over
from torchrelay.shim.agent_link.ask import token_of
from torchrelay.shim.agent_link.config import ShimConfig
from torchrelay.shim.agent_link.link import AgentLink
from torchrelay.shim.join.spare import Spare

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine


class AgentOrders:
    """Follows orders, or hands them over. `spare`: takes what is said to a process that has no rank yet."""

    def __init__(self, config: ShimConfig, link: AgentLink, spare: Spare) -> None:
        self._config = config
        self._link = link
        self._spare = spare
        self._engine: Engine | None = None
        self._engine_lock = threading.Lock()
        self._early: list[MigrationOrder] = []
        self.protect: Protect | None = None
        self.answered = threading.Event()
        """Set once `protect` is there, or never will be."""
        self.may_finish = threading.Event()

    def start(self) -> None:
        self._link.start(self.handle, self._agent_lost, self._again if self._config.asks else None)

    def handle(self, order: ShimOrder) -> None:
        """Handle an order, on the link's thread."""
        match order:
            case Assign() | Begin() | Rehearse() | EndRehearsal():
                self._spare.take(order)
            case Ping(number):
                self._link.send(Pong(number))
            case Protect():
                self.protect = order
                self.answered.set()
            case MayFinish():
                self.may_finish.set()
                if self._engine is not None:
                    self._engine.recovery.wake()
            case EndNow(exit_code, again):
                if again:
                    start_over.start_over(self._config.started, exit_code, self._config.log)
                else:
                    announced_exit.leave(exit_code)
            case SetAside() | ClearCheckpoints():
                from torchrelay.shim.replicas.kept_files import carry_out

                carry_out(order, self._link, self._config.log)
            case Explain():
                self._explain(order)
            case Ack():
                pass  # the link has taken it
            case _:
                self._follow(order)

    def _explain(self, order: Explain) -> None:
        """Explain on a thread of its own, which watches for a while: orders must not wait for that."""
        from torchrelay.shim.observe.stack_probe import answer

        engine = self._engine
        threading.Thread(
            target=answer, args=(order, self._link, engine), name="torchrelay-explain", daemon=True
        ).start()

    def _follow(self, order: MigrationOrder) -> None:
        with self._engine_lock:
            if self._engine is None:
                self._early.append(order)
                return
        self._engine.recovery.handle(order)

    def followed_by(self, engine: Engine) -> None:
        """Follow orders with this engine. Those that came before there was one are followed now."""
        with self._engine_lock:
            self._engine = engine
            early = self._early
            self._early = []
        for order in early:
            engine.recovery.handle(order)

    def _agent_lost(self) -> None:
        self._spare.agent_lost()
        self.answered.set()
        self.may_finish.set()
        if self._engine is not None:
            self._engine.recovery.agent_gone()

    def _again(self) -> Hello:
        """Return what an agent that is started anew has to know."""
        engine = self._engine
        given = self._spare.assign or self._spare.begin
        is_spare = self._config.spare and given is None
        launch = dict(given.env) if given is not None else self._config.launch
        generation = engine.recovery.announced if engine is not None else 0
        in_force = engine.comms.now.number if engine is not None else 0
        if is_spare or (engine is not None and engine.way_in is not None):
            in_force = -1
        return Hello(
            self._config.worker,
            token_of(self._config),
            os.getpid(),
            platform.python_version(),
            is_spare,
            launch,
            True,
            generation,
            in_force,
            engine is not None,
            gpus=selection_of(os.environ),
        )
