"""The shim's one runtime object: what this process is to the job, from the start of the interpreter to its end."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import platform
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from torchrelay.protocol import names
from torchrelay.protocol.errors import StateMismatchError, TorchrelayError, UnsupportedError
from torchrelay.protocol.kube.gpu_selection import selection_of
from torchrelay.protocol.messages import (
    Armed,
    Assign,
    ClearCheckpoints,
    Disabled,
    EndNow,
    Explain,
    Finishing,
    Hello,
    MayFinish,
    OrderFailed,
    Ping,
    Pong,
    Protect,
    SetAside,
    ShimOrder,
    Warm,
)
from torchrelay.protocol.words.order_words import JOIN
from torchrelay.protocol.words.positions import RankPhase, StandingPosition
from torchrelay.shim.agent_link import announced_exit
from torchrelay.shim.agent_link.ask import ask, token_of
from torchrelay.shim.agent_link.config import ShimConfig, parse_faults
from torchrelay.shim.agent_link.link import AgentLink
from torchrelay.shim.agent_link.termination_notice import LastNotice
from torchrelay.shim.bootstrap import failed_script, start_over
from torchrelay.shim.join.rehearsing import NoLink, RehearsalProcess
from torchrelay.shim.join.spare import Spare, config_of_child
from torchrelay.shim.script import sites
from torchrelay.shim.script.guard import Guard, reason_of
from torchrelay.shim.set_up import entropy
from torchrelay.shim.set_up.recording import SetUp

if TYPE_CHECKING:
    from torchrelay.shim.bootstrap.runtime_interface import LoopHooks
    from torchrelay.shim.data.iterator_replay import Draws
    from torchrelay.shim.join.joiner import Joiner
    from torchrelay.shim.join.rehearsal import Rehearsal
    from torchrelay.shim.journal.remote_copies import CopiedJournal
    from torchrelay.shim.observe.check_record import CheckProgress
    from torchrelay.shim.set_up.check_files import Traceless
    from torchrelay.shim.step.engine import Engine

_OTHER_GROUP = (
    "the script has made a default process group that has other ranks or another backend than the one before: "
    "no rank can be replaced from here on"
)
_NAMES_OF_EACH = 1_000_000
"""torch numbers groups from 0 again, and would find in the store what the members of the earlier ones have said there."""
_PROTECT_TIMEOUT_S = 120.0
"""How long a rank that is ready waits for the others; after that the script goes on unprotected."""


class Runtime:
    def __init__(self, config: ShimConfig, link: AgentLink) -> None:
        from torchrelay.shim.bootstrap.standby import Standby

        self.config, self.link = config, link
        self.engine: Engine | None = None
        self.guard = Guard(lambda: self.engine, self.disable)
        self._standby = Standby()
        self._backend = ""
        """Of the first default process group, once there is one."""
        self._others = 0
        """How many default process groups of other ranks were made."""
        self._spare = Spare(link.send, gently=not config.hold_at)
        self._protect: Protect | None = None
        self._answered = threading.Event()
        self._may_finish = threading.Event()
        self._joiner: Joiner | Rehearsal | None = None
        self._child: RehearsalProcess | None = None
        """In a process that rehearses."""
        self._engine_lock = threading.Lock()
        self._early: list[ShimOrder] = []
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
        link.start(self._handle, self._agent_lost, self._again if config.asks else None)

    @classmethod
    def connect(cls, config: ShimConfig) -> Runtime:
        """Raises OSError or TorchrelayError when the agent is not there or does not know this process."""
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

    def _handle(self, order: ShimOrder) -> None:
        if self._spare.takes(order):
            return
        if isinstance(order, Ping):
            self.link.send(Pong(order.number))
        elif isinstance(order, Protect):
            self._protect = order
            self._answered.set()
        elif isinstance(order, MayFinish):
            self._may_finish.set()
            self._wake()
        elif isinstance(order, EndNow):
            if order.again:
                start_over.start_over(order.exit_code, self.config.log)
            else:
                announced_exit.leave(order.exit_code)
        elif isinstance(order, (SetAside, ClearCheckpoints)):
            from torchrelay.shim.replicas.kept_files import carry_out

            carry_out(order, self.link, self.config.log)
        elif isinstance(order, Explain):
            from torchrelay.shim.observe.stack_probe import answer

            comms = self.engine.comms if self.engine is not None else None
            # On a thread of its own: it watches for a while, and orders must not wait for that.
            threading.Thread(
                target=answer, args=(order, self.link, comms), name="torchrelay-explain", daemon=True
            ).start()
        else:
            with self._engine_lock:
                if self.engine is None:
                    self._early.append(order)
                    return
            self.engine.recovery.handle(order)

    def _agent_lost(self) -> None:
        self._spare.agent_lost()
        self._answered.set()
        self._may_finish.set()
        if self.engine is not None:
            self.engine.recovery.agent_gone()

    def _again(self) -> Hello:
        """What an agent that is started anew has to know."""
        engine, given = self.engine, self._spare.assign or self._spare.begin
        launch = dict(given.env) if given is not None else self.config.launch
        generation = engine.recovery.announced if engine is not None else 0
        in_force = engine.comms.now.number if engine is not None else 0
        if (given is None and self.config.spare) or (self._joiner is not None and engine is not None and engine.way_in):
            in_force = -1
        return Hello(
            self.config.worker,
            token_of(self.config),
            os.getpid(),
            platform.python_version(),
            self.config.spare and given is None,
            launch,
            True,
            generation,
            in_force,
            engine is not None,
            gpus=selection_of(os.environ),
        )

    def _wake(self) -> None:
        if self.engine is not None:
            self.engine.recovery.wake()

    def _set_engine(self, engine: Engine) -> None:
        """Orders that came before there was anyone to follow them are followed now."""
        with self._engine_lock:
            self.engine = engine
            early, self._early = self._early, []
        for order in early:
            engine.recovery.handle(order)

    def park(self) -> None:
        """Imports what set-up will need, then waits for a rank. Ends the process when the agent goes away first.

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
            self.link, self._faults = NoLink(), ()
            self.config = config_of_child(self.config, child)
            return
        begin, assign = self._spare.begin, self._spare.assign
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
        """Records from here on what the script learns from outside; a joiner is given what the lost rank learned."""
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
        """By training. Raises TorchrelayError where going on could end in wrong numbers."""
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
        """The script cannot take the lost rank's way, and must not train as a rank of its own. `lasting`: as in OrderFailed."""
        self.link.send(OrderFailed(assign.generation, JOIN, reason, lasting=lasting))
        announced_exit.leave(1)

    def _draw(self) -> entropy.Draw:
        chosen = self.config.entropy
        return entropy.chosen(f"{chosen}/{os.environ.get('RANK')}") if chosen else entropy.from_system

    def numpy_imported(self, module: ModuleType) -> None:
        if self._set_up is not None:
            self._set_up.numpy_imported(module)

    def torch_imported(self) -> None:
        """torch is there: hooks into it. Raises UnsupportedError for a torch that cannot be protected."""
        if self._off or self.engine is not None:
            return
        from torchrelay.shim.adapters.process_groups import agent_store
        from torchrelay.shim.bootstrap import torch_hooks

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
        torch_hooks.install(self)
        if self._spare.assign is not None:
            self._become_joiner(self._spare.assign)
        elif self._child is not None:
            self._begin_rehearsal(self._child)

    def part_imported(self, module: ModuleType) -> None:
        from torchrelay.shim.bootstrap import torch_parts

        torch_parts.prepare(self, module)

    def accelerate_imported(self, module: ModuleType) -> None:
        from torchrelay.shim.data import accelerate_loader

        try:
            accelerate_loader.install(module, self._draws)
        except (UnsupportedError, AttributeError) as e:
            sites.LEFT_ALONE[str(module.__file__)] = str(e)

    def _draws(self) -> Draws | None:
        return self.engine.draws if self.engine is not None and self.engine.takes_part() else None

    def init_process_group(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._off:
            return original(*args, **kwargs)
        if self.engine is None:
            return self._arm(original, args, kwargs)
        if self._backend:
            return self._init_again(self.engine, original, args, kwargs)
        return self._init_of_joiner(self.engine, original, args, kwargs)

    def _init_of_joiner(
        self, engine: Engine, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        from torchrelay.shim.adapters.process_groups import process_group

        assert engine.new_groups is not None
        is_rank = self._child is None
        group = engine.new_groups.default_without_peers(original, args, kwargs, first=is_rank)
        self._backend = process_group.backend_name(group)
        self._go_live(engine)
        if is_rank:
            self._look_at_device(engine)

    def _init_again(
        self, engine: Engine, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """The default process group was destroyed, and is made anew."""
        import torch.distributed as dist

        from torchrelay.shim.adapters.process_groups import process_group

        new_groups = engine.new_groups
        if dist.is_initialized() or new_groups is None:
            return original(*args, **kwargs)
        if new_groups.has_same_ranks(args, kwargs):
            new_groups.make_default(original, *args, **kwargs)
            if process_group.backend_name(dist.group.WORLD) != self._backend:
                engine.give_up(UnsupportedError(_OTHER_GROUP))
            return None
        engine.give_up(UnsupportedError(_OTHER_GROUP))
        self._others += 1
        process_group.name_from(self._others * _NAMES_OF_EACH)
        engine.waiting(True)
        try:
            with engine.comms.breaking.connecting(engine.comms.now):
                return original(*args, **kwargs)
        finally:
            engine.waiting(False)

    def new_group(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        new_groups = self.engine.new_groups if self.engine is not None else None
        return (original if new_groups is None else functools.partial(new_groups.make, original))(*args, **kwargs)

    def _arm(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The script's own process group, then the agreement of all ranks that they are protected."""
        from torchrelay.shim.backends import registry
        from torchrelay.shim.comm.generations.communicators import Communicators

        registry.prepare()
        early = Communicators(-1, -1, self.config.address, self.config.log)
        with early.breaking.connecting(early.now):
            result = original(*args, **kwargs)
        try:
            self._start_engine(early.now.inodes)
        except (TorchrelayError, RuntimeError) as e:
            self.disable(str(e))  # a reason that speaks for itself
        except Exception as e:  # noqa: BLE001 - whatever is wrong with us or this machine, training goes on
            self.disable(f"it could not be got ready: {reason_of(e)}")
        return result

    def _start_engine(self, inodes: set[str]) -> None:
        import torch
        import torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d

        from torchrelay.shim.adapters.process_groups import process_group
        from torchrelay.shim.backends import registry
        from torchrelay.shim.comm.generations.generation_store import decline_gate

        rank, world_size = dist.get_rank(), dist.get_world_size()
        registry.check_groups([c10d._get_default_group()])
        self._backend = backend = process_group.backend_name(c10d._get_default_group())
        journal = self._make_journal()  # before the others count on this rank
        self.link.send(Armed(rank, world_size, backend, torch.__version__))
        answered, protect = self._answered.wait(_PROTECT_TIMEOUT_S), self._protect
        if not answered or protect is None or not protect.on:
            journal.close()
            raise UnsupportedError(protect.reason if protect is not None else "the controller did not answer")
        store = c10d._get_default_store()
        try:
            engine = self._make_engine(rank, world_size, journal)
        except Exception:
            decline_gate(store, rank)
            raise
        engine.comms.now.inodes |= inodes
        engine.comms.connect_gate(store, protect.gate_secret)
        self._set_engine(engine)
        self._go_live(engine)
        self._look_at_device(engine)
        self._tell_of_its_end()

    def _tell_of_its_end(self) -> None:
        """Where others end this process and know of no planned move, and its parent tells nobody of its end."""
        if self.config.asks:
            self._last_notice = LastNotice(self.link, self.config.grace_s)
            self._last_notice.install()
            announced_exit.install(self.link)

    def _make_journal(self) -> CopiedJournal:
        """Raises OSError, JournalError."""
        from torchrelay.shim.journal.remote_copies import CopiedJournal, RemoteJournalCopies

        folder = Path(self.config.journal)
        return CopiedJournal(folder, RemoteJournalCopies(self.link, self.config.worker, folder))

    def _make_engine(self, rank: int, world_size: int, journal: CopiedJournal) -> Engine:
        from torchrelay.shim.bootstrap import torch_hooks
        from torchrelay.shim.observe.fault_injection import FaultInjector, wait_alone
        from torchrelay.shim.observe.stand_for_check import CheckHold
        from torchrelay.shim.replicas.peer_checkpoints import PeerCheckpoints
        from torchrelay.shim.step.engine import Engine

        engine = Engine(
            rank, world_size, self.config.address, self.link, journal, self._standby.tracker(), self.config.log
        )
        engine.set_up, engine.protection = self._set_up, self.config.protection
        engine.budget.limit_percent = self.config.cost_limit_percent
        if self._seen is not None:
            engine.hold = CheckHold(engine, self.config.hold_at, self._seen)
        if self.config.buddy_every and self.config.kept:
            kept, sync = Path(self.config.kept), self.config.buddy_sync
            engine.keeper = PeerCheckpoints(engine, self.config.buddy_every, kept, sync=sync)
        if self.config.watches:
            from torchrelay.shim.observe.loss_watch import Numbers

            engine.numbers = Numbers(engine, self.config.watches)
            engine.replicas.every = max(w.every for w in self.config.watches)
        if self._faults:
            in_vain = functools.partial(wait_alone, engine.rank, engine.world_size, engine.waiting)
            engine.faults = FaultInjector(self._faults, self.link, engine.step_now, in_vain, journal.waited_s)
        torch_hooks.install_for(engine)
        return engine

    def _go_live(self, engine: Engine) -> None:
        """Loops count from the first process group on: in a process that joins as in the rank that was lost."""
        tracker = self._standby.tracker()
        tracker.listener = engine.way_in or engine
        engine.draws.live = True
        tracker.live = True

    @staticmethod
    def _look_at_device(engine: Engine) -> None:
        """Once it is known which libraries its groups use."""
        from torchrelay.shim.observe.device_waits import DeviceWaits
        from torchrelay.shim.observe.failed_communicators import FailedCommunicators

        if engine.comms.have_device():
            failed = FailedCommunicators(engine.comms, engine.link)
            DeviceWaits(engine.journal, engine.comms, failed.look).start()

    def _become_joiner(self, assign: Assign) -> None:
        from torchrelay.shim.join.joiner import Joiner
        from torchrelay.shim.set_up.staging import Staging

        engine = self._make_engine(assign.rank, assign.world_size, self._make_journal())
        # For whoever takes the rank over from here, and a controller that is new by then.
        engine.journal.write_set_up(assign.set_up)
        staging = Staging(self._set_up)
        self._joiner = Joiner(engine, assign, staging)
        self._set_engine(engine)
        staging.begin()
        self._tell_of_its_end()

    def _begin_rehearsal(self, child: RehearsalProcess) -> None:
        from torchrelay.shim.join.rehearsal import Rehearsal

        engine = self._make_engine(child.order.rank, child.order.world_size, self._make_journal())
        self._joiner = Rehearsal(engine, child)
        self._set_engine(engine)

    # The end.

    def _end_set_up(self) -> None:
        if self._set_up is not None:
            self._set_up.end()

    def disable(self, reason: str) -> None:
        """The script runs on as if torchrelay were not there."""
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
        """In a forked child: plain Python from here on."""
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
        """The script has ended. Its state may still be needed by a joiner, so this may wait."""
        self.guard.tell(self._finish, failure)

    def _finish(self, failure: BaseException | None) -> None:
        engine = self.engine
        if engine is not None and engine.keeper is not None:
            engine.keeper.close()
        boundary = engine.commit.boundary if engine is not None and engine.commit is not None else -1
        if self._child is not None and self._joiner is None:
            self._child.break_off("the script ended before it imported torch")
        if failure is not None:
            if engine is not None:
                from torchrelay.shim.observe import lost_device

                lost_device.end_if_lost(engine, failure)
            if self._joiner is not None:
                self._joiner.failed(failure)
            failed_script.tell(self.link, failure, boundary)
            if self.config.asks and engine is not None:
                failed_script.await_verdict(self.config.launch, self._may_finish)
            return
        if engine is None or self._off:
            return
        if self._joiner is not None and engine.way_in is not None:
            self._joiner.failed(StateMismatchError("the script ended before the loop that the lost rank was in"))
            return
        engine.step.ended_script()
        engine.journal.boundary = engine.step.gates_passed
        engine.phase(RankPhase.FINISHED)
        self.link.send(Finishing(engine.step.gates_passed))
        if engine.commit is None:
            self._may_finish.wait()
            return
        while True:
            engine.recovery.wait_until(self._may_finish.is_set)
            if self._may_finish.is_set():
                return
            engine.recovery.stand(StandingPosition.FINISHED, None)
