"""Checkpoints that a thread saves while training goes on: carried over to a new process, and begun again where one was lost."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import torch

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters.process_groups import process_group
from torchrelay.shim.comm.generations.communication_failure import is_communication_failure
from torchrelay.shim.saves import save_records, save_under_way
from torchrelay.shim.saves.save_agreement import SaveAgreement, SaveReport, SaveVerdict
from torchrelay.shim.saves.save_under_way import Interrupted, Save, SaveAttempt, SaveState
from torchrelay.shim.saves.save_waits import SaveWaits
from torchrelay.shim.script.save_future import SaveFuture, SaveId

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine

AT_ONCE_BYTES = 16 << 20
"""States up to this size are described on the training thread: that takes milliseconds, and no boundary comes before it."""
_DISPATCH_S = 30.0
"""To hand a collective to gloo takes microseconds."""
_FAILED_KEPT = 16
Journaled = tuple[dict[str, int], tuple[tuple[str, int, bytes], ...], tuple[tuple[str, int], ...]]
"""How many were begun in each group; those under way, with what `save_records` writes of them; those that failed."""


class AsyncSaves:
    """`live`: whether there are peers; a joiner's saves wait until it has entered."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.live = True
        self.waits = SaveWaits(engine, self.known_whole)
        self._news = threading.Condition()
        self._saves: dict[SaveId, Save] = {}
        self._begun: dict[str, int] = {}
        self._failed: list[SaveId] = []
        self._attempts: dict[int, SaveAttempt] = {}
        self._promised: dict[SaveId, SaveFuture] = {}
        """Of a joiner on its way in: what the lost rank's variables held."""
        self._carried = False
        self._generation = 0
        self._exchanging = False
        self._agreement: SaveAgreement | None = None

    # On the training thread, from the script.

    def begin(self, staged: Any, options: dict[str, Any]) -> Save | None:
        """Return a save that the script begins; None for one that is not looked after."""
        engine = self._engine
        if not engine.takes_part():
            return None
        group = ""
        ranks = [engine.rank]
        if not options.get("no_dist") and options.get("use_collectives", True):
            group, ranks = process_group.named_or_default(options.get("process_group"))
        with self._news:
            number = self._begun[group] = self._begun.get(group, 0) + 1
            save = Save(self, SaveId(group, number), ranks, staged, options)
            if engine.way_in is not None:
                save.state = SaveState.WHOLE  # what came of it, the lost rank's journal says
                return save
            self._saves[save.id] = save
        if engine.records.answers is not None and (not engine.behind_gate() or isinstance(staged, Future)):
            save.complete = False  # its tensors are not yet the lost rank's, or are read unseen
        elif not isinstance(staged, Future) and save_records.size_bytes(staged) <= AT_ONCE_BYTES:
            self._describe(save)
        return save

    def promised(self, future: SaveFuture) -> SaveFuture:
        future.add_done_callback(lambda _: self._engine.recovery.wake())
        return future

    def begun(self) -> dict[str, int]:
        with self._news:
            return dict(self._begun)

    def era(self) -> str:
        """Return a text that is the same on all ranks that save together, and another one from a migration on."""
        return str(self._generation) if self.live else "on the way in"

    def journal(self) -> Journaled:
        """Return what the journal of a boundary holds of saves. Saves that are over are forgotten."""
        if not self._begun:
            return {}, (), ()
        with self._news:
            self._saves = {known: save for known, save in self._saves.items() if save.state is SaveState.UNDER_WAY}
            under_way = tuple((*known, save.content) for known, save in self._saves.items())
            return dict(self._begun), under_way, tuple((*failed,) for failed in self._failed)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return path -> what was staged, of all that were under way at the latest boundary or are now."""
        with self._news:
            return {path: tensor for save in self._saves.values() for path, tensor in save.tensors.items()}

    def known_whole(self, save_id: SaveId) -> None:
        """Note that another rank is through with the save."""
        with self._news:
            save = self._saves.get(save_id)
            if save is not None and save.state is SaveState.UNDER_WAY:
                save.state = SaveState.WHOLE
                self._news.notify_all()
        if save is None and save_id in self._promised:
            save_under_way.conclude(self._promised[save_id], failed=False)

    # A joiner.

    def future(self, save_id: SaveId) -> SaveFuture:
        """Return a future that stands for the one that the lost rank had."""
        save = self._saves.get(save_id)
        if save is not None and save.future is not None:
            return save.future
        future = self._promised.get(save_id)
        if future is None:
            future = self._promised[save_id] = self.promised(SaveFuture(save_id, self.waits.wait))
            if self._carried:
                save_under_way.conclude(future, failed=save_id in self._failed)
        return future

    def pass_to(self, begun: Mapping[str, int]) -> None:
        """Note how many saves had been begun where a joiner is on its way in."""
        with self._news:
            self._begun = dict(begun)

    def carry(self, journaled: Journaled) -> None:
        """Take over, at the head where a joiner enters, what the lost rank had begun.

        Saves under way are gone on with once it has entered.
        """
        begun, under_way, failed = journaled
        with self._news:
            self._begun = dict(begun)
            self._failed = [SaveId(*save) for save in failed]
            self._carried = True
        for group, number, content in under_way:
            save = save_under_way.restored(self, SaveId(group, number), content, self._engine.rank)
            save.future = self._promised.pop(save.id, None) or self.promised(SaveFuture(save.id, self.waits.wait))
            if save.future.done():
                continue
            with self._news:
                self._saves[save.id] = save
            pool = ThreadPoolExecutor(1, thread_name_prefix="AsyncCheckpointExecutor")
            pool.submit(save_under_way.complete, save.future, save)
            pool.shutdown(wait=False)
        for save_id, future in self._promised.items():
            save_under_way.conclude(future, failed=save_id in self._failed)

    # A migration, on the training thread.

    def exchange_begins(self) -> None:
        """Let no thread hand anything to communicators that are being exchanged.

        Raises RuntimeError where a thread does not let go.
        """
        with self._news:
            self._exchanging = True
            if not self._news.wait_for(lambda: not any(a.dispatching for a in self._attempts.values()), _DISPATCH_S):
                raise RuntimeError("a thread that saves does not come loose from the communicators before")

    def abandoned(self) -> None:
        with self._news:
            self._exchanging = False
            self._news.notify_all()

    def are_under_way(self) -> bool:
        with self._news:
            return any(save.state is SaveState.UNDER_WAY for save in self._saves.values())

    def entered(
        self, generation: int, back_to: Mapping[str, int] | None = None, *, has_communicators: bool = True
    ) -> None:
        """Go on as the migration is committed.

        `back_to`: how many saves had been begun at the boundary that this rank goes back to. `has_communicators`: whether ranks can
        ask each other; not where some have finished the script.
        """
        with self._news:
            if back_to is not None:
                self._drop(back_to)
            for save in self._saves.values():
                if save.restored is not None:
                    save.complete = save.restored.is_whole()
                    save.restored = None
            shared = [save for save in self._saves.values() if save.state is SaveState.UNDER_WAY and not save.alone]
            report = SaveReport(dict(self._begun), {s.id: s.complete for s in shared}, frozenset(self._failed))
        agreement = self._publish(generation, report) if has_communicators else None
        with self._news:
            self._generation = generation
            self._exchanging = False
            self.live = True
            self._agreement = agreement
            self._news.notify_all()

    def _publish(self, generation: int, report: SaveReport) -> SaveAgreement:
        comms = self._engine.comms
        agreement = SaveAgreement(generation, comms.rank, comms.world_size, comms.now.stores[-1])
        try:
            agreement.publish(report)  # before anybody waits for it, which keeps the store busy
        except RuntimeError as error:
            if not is_communication_failure(error):
                raise  # otherwise this generation is over
        return agreement

    def _drop(self, back_to: Mapping[str, int]) -> None:
        for save in self._saves.values():
            if save.id.number > back_to.get(save.id.group, 0):
                save.state = SaveState.DROPPED
        self._begun = dict(back_to)

    # On a thread that saves.

    def run(self, save: Save, write: Callable[[Any], Any]) -> Any:
        """Do the save, and return its result.

        Raises what staging or saving does, UnsupportedError for a save that is lost, Interrupted for one that is begun anew.
        """
        me = self._attempts[threading.get_ident()] = SaveAttempt(save)
        try:
            if save.complete and not save.described and save.state is SaveState.UNDER_WAY:
                self._describe(save)
            while self._turn(me):
                try:
                    result = write(save.staged)
                except Exception as error:
                    if not isinstance(error, Interrupted) and not self._is_past(me):
                        self._fail(save)
                        raise
                    continue
                if self._settle(me):
                    return result
            return None
        finally:
            with self._news:
                del self._attempts[threading.get_ident()]
                self._news.notify_all()

    def attempt(self) -> SaveAttempt | None:
        """Return this thread's attempt, if it saves."""
        return self._attempts.get(threading.get_ident())

    def collective(self, me: SaveAttempt, call: Callable[[], Any]) -> Any:
        """Call a collective of a save. Raises Interrupted where a migration has come between."""
        if me.save.alone:
            return call()
        with self._news:
            me.dispatching = False
            self._news.notify_all()
            self._news.wait_for(lambda: not self._exchanging or self._is_past(me))
            self._check(me)
            me.dispatching = True
        try:
            result = call()
        except RuntimeError as error:
            if is_communication_failure(error) and not isinstance(error, Interrupted):
                self._engine.recovery.expect_news(me.generation)
            with self._news:  # whoever has moved ends as soon as the new communicators stand
                self._news.wait_for(lambda: not self._exchanging or self._is_past(me))
            self._check(me, error)
            raise
        finally:
            self.dispatched()
        self._check(me)  # a wait that was broken may have left anything
        return result

    def dispatched(self) -> None:
        """Note that this thread only waits from here on: an exchange leaves that alone, or breaks it."""
        me = self.attempt()
        if me is not None and me.dispatching:
            with self._news:
                me.dispatching = False
                self._news.notify_all()

    def _check(self, me: SaveAttempt, error: Exception | None = None) -> None:
        if self._is_past(me) or me.save.state is not SaveState.UNDER_WAY:
            raise Interrupted("a migration came between") from error

    def _is_past(self, me: SaveAttempt) -> bool:
        return self._generation != me.generation or self._engine.recovery.has_announced(me.generation)

    def _turn(self, me: SaveAttempt) -> bool:
        """Wait until the save can be done, or done again. Return False where nothing is left to do.

        Raises Interrupted where the script begins it anew, UnsupportedError where it cannot be done any more.
        """
        save = me.save
        while True:
            with self._news:
                me.running = False
                self._news.notify_all()
                self._news.wait_for(lambda: save.state is not SaveState.UNDER_WAY or self._may_run(me))
                if save.state is SaveState.DROPPED:
                    raise Interrupted("training went back to before this save: it is begun anew")
                if save.state is not SaveState.UNDER_WAY:
                    return False
                me.generation = self._generation
                me.running = True
                agreement = self._agreement
            if save.alone or agreement is None:
                verdict = SaveVerdict.AGAIN if save.complete else SaveVerdict.LOST
                reason = "this rank was lost in it"
            else:
                try:
                    verdict, reason = agreement.decide(save.id, save.ranks)
                except RuntimeError as error:
                    self._engine.recovery.expect_news(me.generation)
                    if self._is_past(me):
                        continue
                    raise UnsupportedError(f"what other ranks know of a save cannot be had: {error}") from error
            if verdict is SaveVerdict.AGAIN:
                return True
            if verdict is SaveVerdict.WHOLE:
                self.known_whole(save.id)
                return False
            self._fail(save)
            raise UnsupportedError(
                f"a checkpoint was being saved when a rank was lost, and cannot be finished: {reason}"
            )

    def _may_run(self, me: SaveAttempt) -> bool:
        group, number = me.save.id
        others = [a.save for a in self._attempts.values() if a is not me and a.running]
        if me.save.alone:  # what is given up may still write to the same place
            return self.live and not any(s.alone and s.state is SaveState.DROPPED for s in others)
        if not self.live or self._exchanging or self._engine.recovery.has_announced(self._generation):
            return False
        earlier = [s for s in self._saves.values() if s.state is SaveState.UNDER_WAY and s.id.number < number]
        return not any(s.id.group == group for s in (*others, *earlier))

    def _settle(self, me: SaveAttempt) -> bool:
        """Return whether what was done counts."""
        with self._news:
            if not me.save.alone:
                self._news.wait_for(lambda: not self._exchanging or self._is_past(me))
            if me.save.state is SaveState.UNDER_WAY and (me.save.alone or not self._is_past(me)):
                me.save.state = SaveState.WHOLE
                self._news.notify_all()
            return me.save.state is SaveState.WHOLE

    def _fail(self, save: Save) -> None:
        with self._news:
            save.state = SaveState.FAILED
            self._failed = [*self._failed, save.id][-_FAILED_KEPT:]
            self._news.notify_all()

    def _describe(self, save: Save) -> None:
        try:
            content, tensors = save.describe()
        except UnsupportedError as error:
            self._engine.reporter.save_not_carried(str(error))
            return
        except Exception:
            self._fail(save)  # its state could not be staged
            raise
        with self._news:
            save.content = content
            save.tensors = tensors
