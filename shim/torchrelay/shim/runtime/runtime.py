"""The shim's one runtime object: what this process is to the job, from the start of the interpreter to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import signal
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

from torchrelay.protocol import names
from torchrelay.protocol.errors import StateMismatchError, TorchrelayError, UnsupportedError
from torchrelay.protocol.messages import (
    Assign,
    Disabled,
    Hello,
    OrderFailed,
    Warm,
)
from torchrelay.protocol.words.order_words import JOIN
from torchrelay.shim.agent_link import announced_exit
from torchrelay.shim.agent_link.ask import ask
from torchrelay.shim.agent_link.config import ShimConfig, parse_faults
from torchrelay.shim.agent_link.link import AgentLink
from torchrelay.shim.agent_link.termination_notice import LastNotice
from torchrelay.shim.join.rehearsing import NoLink, RehearsalProcess
from torchrelay.shim.join.spare import Spare, config_of_child
from torchrelay.shim.observe.device_holds import DeviceHolds
from torchrelay.shim.runtime import script_ending
from torchrelay.shim.runtime.agent_orders import AgentOrders
from torchrelay.shim.runtime.arming import Arming
from torchrelay.shim.runtime.engine_maker import EngineMaker, go_live, look_at_device
from torchrelay.shim.runtime.script_groups import ScriptGroups
from torchrelay.shim.script import sites
from torchrelay.shim.script.guard import Guard, reason_of
from torchrelay.shim.set_up import entropy
from torchrelay.shim.set_up.recording import SetUp

if TYPE_CHECKING:
    from torchrelay.shim.bootstrap.runtime_interface import LoopHooks
    from torchrelay.shim.data.iterator_replay import IteratorReplay
    from torchrelay.shim.join.joiner import Joiner
    from torchrelay.shim.join.rehearsal import Rehearsal
    from torchrelay.shim.observe.check_record import CheckProgress
    from torchrelay.shim.set_up.check_files import Traceless
    from torchrelay.shim.step.engine import Engine


class Runtime:
    def __init__(self, config: ShimConfig, link: AgentLink) -> None:
        from torchrelay.shim.bootstrap.standby import Standby

        self.config = config
        self.link = link
        self.engine: Engine | None = None
        self.guard = Guard(lambda: self.engine, self.disable)
        self.device_holds = DeviceHolds()
        self._standby = Standby()
        self._spare = Spare(link.send, gently=not config.hold_at)
        self.orders = AgentOrders(config, link, self._spare)
        self._joiner: Joiner | Rehearsal | None = None
        self._child: RehearsalProcess | None = None
        """In a process that rehearses."""
        self._faults = config.faults
        self._off = False
        self._set_up: SetUp | None = None
        self._last_notice: LastNotice | None = None
        os.register_at_fork(after_in_child=self.deactivate)
        self._traceless: Traceless | None = None
        self._seen: CheckProgress | None = None
        if config.hold_at and not config.spare:
            from torchrelay.shim.observe.check_record import CheckProgress
            from torchrelay.shim.set_up.check_files import Traceless

            made = Path(config.made_files)
            self._seen = CheckProgress(made.parent / names.SEEN_FILE, config.cut_loaders)
            self._traceless = Traceless(made)
            self._traceless.start()
        self.orders.start()

    @classmethod
    def connect(cls, config: ShimConfig) -> Runtime:
        """Connect to the agent. Raises OSError or TorchrelayError when it is not there or does not know this process."""
        if config.asks:
            return cls(*ask(config))
        hello = Hello(config.worker, config.token, os.getpid(), platform.python_version(), config.spare)
        return cls(config, AgentLink.connect(config.socket, hello))

    @property
    def is_spare(self) -> bool:
        return self.config.spare

    @property
    def hooks(self) -> LoopHooks:
        return self._standby

    def park(self) -> None:
        """Import what set-up will need, then wait for a rank. End the process when the agent goes away first.

        A rank is one to be taken over, or, where the whole job begins again, one from the script's beginning.
        """
        import torch
        import torch._dynamo  # any optimizer's constructor brings it about, and it takes longer than all else

        from torchrelay.shim import transfer  # noqa: F401 - warm
        from torchrelay.shim.join import joiner, rehearsal  # noqa: F401 - warm
        from torchrelay.shim.set_up import staging  # noqa: F401 - warm

        self.link.send(Warm(torch.__version__))
        try:
            child = self._spare.wait()
        except KeyboardInterrupt:
            announced_exit.leave(128 + signal.SIGINT)  # nothing of the script has begun: a traceback would only puzzle
        if child is not None:
            self._child = child
            self.link.close_in_child()
            self.link = NoLink()
            self._faults = ()
            self.config = config_of_child(self.config, child)
            return
        begin = self._spare.begin
        assign = self._spare.assign
        if begin is not None:
            self.config = dataclasses.replace(self.config, spare=False)
            os.environ.update(begin.env)
            return
        if assign is None:
            announced_exit.leave(0)  # the agent is gone, and with it the job that this spare was for
        environ = dict(assign.env)
        self._faults = parse_faults(environ.pop(names.ENV_INJECT, ""))
        os.environ.update(environ)

    def begin_set_up(self) -> None:
        """Record from here on what the script learns from outside; a joiner is given what the lost rank learned."""
        try:
            given = self._spare.assign if self._child is None else self._child.order
            if given is None:
                set_up = SetUp(draw=self._draw())
            else:
                from torchrelay.shim.journal import payload

                journal: payload.SetUpJournal = payload.load(given.set_up, payload.SetUpJournal)
                if not journal.outside:
                    return
                set_up = SetUp(journal.outside)
            set_up.on_input = self._input_is_read
            set_up.begin()
        except TorchrelayError as e:
            if self._child is not None:
                self._child.cannot(f"{type(e).__name__}: {e}")
            if self._spare.assign is not None:
                self._cannot_join(self._spare.assign, reason_of(e), lasting=True)
            return  # told in the protection report
        self._set_up = set_up

    def _input_is_read(self, reason: str) -> None:
        """Note that training has read input. Raises TorchrelayError where going on could end in wrong numbers."""
        if self._off:
            return
        if self._spare.assign is not None or self._child is not None:
            raise StateMismatchError(f"{reason}: this process has taken over a rank, and has none")
        if self.engine is None:
            self.disable(reason)
        elif self.engine.unprotected.migrates():
            raise UnsupportedError(f"{reason}, and this step is done again")
        else:
            self.engine.give_up(UnsupportedError(reason))

    def _cannot_join(self, assign: Assign, reason: str, *, lasting: bool = False) -> NoReturn:
        """End a process whose script cannot take the lost rank's way: it must not train as a rank of its own.

        `lasting`: as in OrderFailed.
        """
        self.link.send(OrderFailed(assign.generation, JOIN, reason, lasting=lasting))
        announced_exit.leave(1)

    def _draw(self) -> entropy.Draw:
        chosen = self.config.entropy
        return entropy.chosen(f"{chosen}/{os.environ.get('RANK')}") if chosen else entropy.from_system

    def numpy_imported(self, module: ModuleType) -> None:
        if self._set_up is not None:
            self._set_up.numpy_imported(module)

    def torch_imported(self) -> None:
        """Put hooks into torch, which is there now. Raises UnsupportedError for a torch that cannot be protected."""
        if self._off or self.engine is not None:
            return
        from torchrelay.shim.adapters.process_groups import agent_store
        from torchrelay.shim.bootstrap import torch_hooks
        from torchrelay.shim.capture.scripted_calls import ScriptedCalls

        if self._child is None and not self.config.asks:
            agent_store.use(os.environ, self.link.agent_pid(), joins=self._spare.assign is not None)
        if self._set_up is not None:
            try:
                self._set_up.torch_imported(sys.modules["torch"])
            except UnsupportedError:
                self._end_set_up()
                self._set_up = None
        if self._traceless is not None and self._seen is not None:
            self._traceless.torch_imported(sys.modules["torch"])
            self._seen.torch_imported()
        elif self.config.cut_loaders:
            from torchrelay.shim.data import short_loaders

            short_loaders.install(self.config.cut_loaders)  # of a process that rehearses a rank with such loaders
        torch_hooks.check_supported()
        scripted = ScriptedCalls()
        maker = EngineMaker(self.config, self.link, self._standby, self._set_up, self._faults, self._seen, scripted)
        torch_hooks.install(self, self.script_groups(maker), scripted)
        if self._spare.assign is not None:
            self._become_joiner(self._spare.assign, maker)
        elif self._child is not None:
            self._begin_rehearsal(self._child, maker)

    def script_groups(self, maker: EngineMaker) -> ScriptGroups:
        """Return what takes the place of torch's functions that make process groups."""
        arming = Arming(self.config, self.link, self.orders, maker, self._protected_by, self.disable)
        rehearses = self._child is not None
        return ScriptGroups(lambda: self.engine, lambda: self._off, arming.make_first_group, rehearses=rehearses)

    def _protected_by(self, engine: Engine) -> None:
        self._set_engine(engine)
        go_live(engine)
        look_at_device(engine)
        self._tell_of_its_end()

    def _set_engine(self, engine: Engine) -> None:
        self.engine = engine
        engine.reporter.holds = self.device_holds
        self.orders.followed_by(engine)

    def part_imported(self, module: ModuleType) -> None:
        from torchrelay.shim.bootstrap import torch_parts

        torch_parts.prepare(self, module)

    def accelerate_imported(self, module: ModuleType) -> None:
        from torchrelay.shim.data import accelerate_loader

        try:
            accelerate_loader.install(module, self._draws)
        except (UnsupportedError, AttributeError) as e:
            sites.LEFT_ALONE[str(module.__file__)] = str(e)

    def _draws(self) -> IteratorReplay | None:
        return self.engine.draws if self.engine is not None and self.engine.takes_part() else None

    def _become_joiner(self, assign: Assign, maker: EngineMaker) -> None:
        from torchrelay.shim.join.joiner import Joiner
        from torchrelay.shim.set_up.staging import Staging

        engine = maker.engine(assign.rank, assign.world_size, maker.journal())
        # Whoever takes the rank over from here reads it, and a controller that is new by then.
        engine.journal.write_set_up(assign.set_up)
        staging = Staging(self._set_up)
        engine.opens = staging.open
        staging.before_release = engine.trees.files.put_for_real
        staging.on_release = engine.files.begin
        self._joiner = Joiner(engine, assign, staging)
        self._set_engine(engine)
        staging.begin()
        self._tell_of_its_end()

    def _begin_rehearsal(self, child: RehearsalProcess, maker: EngineMaker) -> None:
        from torchrelay.shim.join.rehearsal import Rehearsal

        engine = maker.engine(child.order.rank, child.order.world_size, maker.journal())
        self._joiner = Rehearsal(engine, child)
        self._set_engine(engine)

    def _tell_of_its_end(self) -> None:
        """Prepare to tell of this process's end, where others end it and know of no planned move, and its parent tells no agent."""
        if self.config.asks:
            self._last_notice = LastNotice(self.link, self.config.grace_s)
            self._last_notice.install()
            announced_exit.install(self.link)

    # The end.

    def _end_set_up(self) -> None:
        if self._set_up is not None:
            self._set_up.end()

    def disable(self, reason: str) -> None:
        """Let the script run on as if torchrelay were not there."""
        if self._off:
            return
        if self._child is not None:
            self._child.cannot(reason)
        if self.engine is not None:
            self.engine.give_up(UnsupportedError(reason))  # the others wait for this rank at their gates
            return
        if self._spare.assign is not None:
            self._cannot_join(self._spare.assign, reason)
        self._off = True
        self._end_set_up()
        self._standby.stop()
        with contextlib.suppress(Exception):  # telling must not end what it speaks of
            self.link.send(Disabled(reason))
            self.config.log.say(f"not protecting this process: {' '.join(reason.split())}")

    def deactivate(self) -> None:
        """Become plain Python from here on, in a forked child."""
        if self._spare.is_forking:
            return
        self._off = True
        self._end_set_up()
        self._standby.stop()
        self.engine = None
        if self._last_notice is not None:
            self._last_notice.remove_in_child()
        self.link.close_in_child()

    def finish(self, failure: BaseException | None) -> None:
        """Note that the script has ended. Its state may still be needed by a joiner, so this may wait."""
        self.guard.tell(self._finish, failure)

    def _finish(self, failure: BaseException | None) -> None:
        engine = self.engine
        if engine is not None and engine.keeper is not None:
            engine.keeper.close()
        if self._child is not None and self._joiner is None:
            self._child.break_off("the script ended before it imported torch")
        if failure is not None:
            script_ending.failed(failure, self.config, self.link, self.orders.may_finish, engine, self._joiner)
        elif engine is None or self._off:
            return
        elif self._joiner is not None and engine.way_in is not None:
            self._joiner.failed(StateMismatchError("the script ended before the loop that the lost rank was in"))
        else:
            script_ending.ended(engine, self.link, self.orders.may_finish)
