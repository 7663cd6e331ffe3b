"""A roll-back of all ranks to their kept copies: asks the agents for them, and finds the processes that take over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection

from torchrelay.controller.decide.migration.roll_back import choose_givers, choose_step
from torchrelay.controller.decide.migration.stand import Cannot
from torchrelay.controller.decide.replacement.elsewhere import Elsewhere
from torchrelay.controller.migration import events as m
from torchrelay.controller.migration.state import State
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.worker import Worker
from torchrelay.protocol.errors import JournalError
from torchrelay.protocol.messages import FetchKept, KeptCopies, KeptCopy, LateWorker, OrderFailed, StartWorker
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.words.positions import JoinerAction

DAMAGED = JournalError.__name__
STARTS = 4
"""How many processes one rank may use up in a roll-back before a spare is asked for."""


class Rollback:
    """Rolls the job back, one roll-back at a time. `every`: steps between copies, or COPIES_AS_NEEDED; 0: there are no copies."""

    def __init__(self, every: int, job: Job, outbox: Outbox) -> None:
        self._every = every
        self._job = job
        self._outbox = outbox
        self._awaited: set[str] = set()
        self._found: dict[int, dict[int, dict[str, KeptCopy]]] = {}
        self._why = ""
        self._without_set_up: set[int] = set()
        self._nodes: dict[int, str] = {}
        """The node where each rank enters."""
        self._in_place: set[int] = set()
        self._starting: set[int] = set()
        self._starts: Counter[int] = Counter()
        self._givers: dict[int, int] = {}
        """The rank that gives its copy to each rank whose own node has none."""
        self._given: dict[str, str] = {}
        """The folder that is given through the channel with each token."""
        self._damaged: dict[tuple[int, int, str], str] = {}
        """Copies (rank, boundary, node) that turned out to be of no use, and why."""
        self._furthest = 0
        self.place_for: Callable[[int, Collection[str]], Elsewhere] = lambda rank, taken: Elsewhere("", "", "")
        """Returns where a rank that no process takes over can start over, other than in these places."""
        self._in_place_of: dict[int, str] = {}
        """For each rank that does: the ended process whose place it gets."""
        self.copies: dict[int, KeptCopy] = {}
        """The copy that each rank goes on from, in the last roll-back that was decided."""

    @property
    def is_on(self) -> bool:
        return self._every != 0

    @property
    def is_asked(self) -> bool:
        """Whether a roll-back is asked for, since nothing less will do."""
        return bool(self._why)

    def ask(self, why: str) -> None:
        """Ask all agents for their copies. `why` says for what reason nothing less than a roll-back will do."""
        self._why = why
        self._search()

    def looks_for_set_up(self, rank: int) -> bool:
        """Return whether the rank's set-up is not known, and begin to look for it in copies.

        `take_set_ups` puts it into the rank's journal then.
        """
        if not self.is_on or self._job.journal(rank).set_up:
            return False
        if not self._without_set_up or not self._awaited:
            self._why = ""
            self._search()
        self._without_set_up.add(rank)
        return True

    def take_set_ups(self) -> list[int]:
        """Put the set-ups that were found into the ranks' journals. Return the ranks for which they were looked for."""
        ranks = sorted(self._without_set_up)
        self._without_set_up = set()
        for rank in ranks:
            if found := self._found.get(rank):
                newest = next(iter(found[max(found)].values()))
                self._job.journal(rank).set_up = newest.set_up
        return ranks

    def _search(self) -> None:
        self._found = {}
        self._damaged.clear()
        self._awaited = {node.node for node in self._job.nodes.values() if not node.lost}
        for node in self._awaited:
            self._outbox.to_agent(node, FetchKept())

    def arrived(self, node: str, message: KeptCopies) -> bool:
        """Take in an agent's copies. Return whether this was the last message that was waited for."""
        for copy in message.copies:
            self._found.setdefault(copy.rank, {}).setdefault(copy.boundary, {})[node] = copy
        return message.last and self.heard_all(node)

    def heard_all(self, node: str) -> bool:
        """Take note that `node` has said all that it will say, or is lost. Return whether no other node is waited for."""
        if node not in self._awaited:
            return False
        self._awaited.discard(node)
        return not self._awaited

    def decide(self, s: State) -> m.RollBackDecided | m.TargetImpossible:
        """Decide the step that all ranks go back to, from the copies that were found.

        What the job knows of later steps is dropped.
        """
        job = self._job
        places = {rank: job.holder(rank).node for rank in s.survivors}
        places |= {rank: job.workers[joiner.worker].node for rank, joiner in s.joiners.items()}
        alone = [rank for rank in s.lost if rank not in s.joiners]
        in_place_of: dict[int, str] = {}
        for rank in alone:
            where = self.place_for(rank, in_place_of.values())
            if not where.node:
                return m.TargetImpossible(
                    f"{self._why}; {s.no_spare}; and rank {rank} cannot start over: {where.reason}"
                )
            places[rank] = where.node
            in_place_of[rank] = where.in_place_of
        standings = {rank: s.standings[rank] for rank in s.survivors}
        seen = max(job.holder(rank).seen_boundary for rank in range(s.world_size))
        step = choose_step(self._held(), places, standings, seen)
        if isinstance(step, Cannot):
            no_spare = f"; {s.no_spare}" if alone else ""
            return m.TargetImpossible(f"{self._why}{no_spare}; and {step.reason}")
        self._furthest = step.boundary + step.redone
        self._nodes = places
        self._in_place_of = in_place_of
        self.copies = {rank: self._copy(rank, step.boundary, (node,)) for rank, node in places.items()}
        self._givers = {}
        self._given = {}
        stale = tuple(rank for rank in s.joiners if self.copies[rank].set_up != job.journal(rank).set_up)
        self._in_place = {*s.survivors, *stale, *alone}
        self._starting = set()
        self._starts.clear()
        job.go_back(step.boundary)
        return m.RollBackDecided(step.boundary, step.redone, f"{step.reason}: {self._why}", stale)

    def _held(self) -> dict[int, dict[int, set[str]]]:
        """Return rank -> boundary -> the nodes with a copy that is of use, as far as is known."""
        return {
            rank: {b: {n for n in nodes if (rank, b, n) not in self._damaged} for b, nodes in by.items()}
            for rank, by in self._found.items()
        }

    def _copy(self, rank: int, boundary: int, nodes: tuple[str, ...]) -> KeptCopy:
        """Return the copy of one of `nodes`, if one has it; else a copy of another node, with the same content."""
        there = self._found[rank][boundary]
        return next((there[node] for node in nodes if node in there), next(iter(there.values())))

    def target(
        self, s: State, new_token: Callable[[], str]
    ) -> m.TargetDecided | m.RollBackDecided | m.TargetImpossible:
        """Decide which rank gives which copy to which rank, now that it is known where each rank enters."""
        job = self._job
        boundary = next(iter(self.copies.values())).boundary
        places = {rank: job.workers[joiner.worker].node for rank, joiner in s.joiners.items()}
        held = self._held()
        givers = choose_givers({rank: held[rank][boundary] for rank in places}, places)
        if isinstance(givers, Cannot):
            return self._older(s, places)
        self._givers = givers
        self._given = {}
        tokens = {}
        for rank, place in places.items():
            node = places[givers[rank]] if rank in givers else place
            self.copies[rank] = self._copy(rank, boundary, (node,))
            if rank in givers:
                tokens[rank] = new_token()
                self._given[tokens[rank]] = self.copies[rank].directory
        given = "".join(f"; rank {giver} gives that of rank {rank}" for rank, giver in givers.items())
        return m.TargetDecided(
            boundary,
            f"all ranks go on after step {boundary}, from their copies{given}",
            actions={},
            entries=dict.fromkeys(range(s.world_size), JoinerAction.ENTER.value),
            donors=givers,
            tokens=tokens,
            peer_hosts={rank: job.host_of(s.joiners[rank].worker) for rank in givers},
        )

    def _older(self, s: State, places: dict[int, str]) -> m.RollBackDecided | m.TargetImpossible:
        """Choose the copies of an earlier step, since those that were chosen turned out not to be there for all ranks."""
        why = "; ".join((self._why, *self._damaged.values()))
        step = choose_step(self._held(), places, {})
        if isinstance(step, Cannot):
            return m.TargetImpossible(f"{why}; and {step.reason}")
        before = {rank: copy.set_up for rank, copy in self.copies.items()}
        self.copies = {rank: self._copy(rank, step.boundary, (node,)) for rank, node in places.items()}
        stale = tuple(rank for rank in places if self.copies[rank].set_up != before[rank])
        self._in_place |= set(stale)
        self._job.go_back(step.boundary)
        redone = self._furthest - step.boundary
        reason = f"all ranks go back to their copies of step {step.boundary}; {redone} steps are done again"
        return m.RollBackDecided(step.boundary, redone, f"{reason}: {why}", stale)

    def folder_of(self, token: str) -> str:
        """Return the folder that is given through the channel with that token."""
        return self._given[token]

    def folder_for(self, rank: int) -> str:
        """Return the folder of the rank's copy on its own node; empty where another rank gives it the copy."""
        return "" if rank in self._givers else self.copies[rank].directory

    def failed(self, worker: Worker, report: OrderFailed) -> None:
        """Take note of a copy that turns out to be damaged: it is not counted on again."""
        if not report.reason.startswith(DAMAGED) or worker.rank not in self.copies:
            return
        if report.order == "Serve":
            affected = [rank for rank, giver in self._givers.items() if giver == worker.rank]
        else:
            affected = [] if worker.rank in self._givers else [worker.rank]
        for rank in affected:
            boundary = self.copies[rank].boundary
            text = f"the copy of rank {rank} on {worker.node} is of no use: {report.reason}"
            self._damaged[rank, boundary, worker.node] = text
            self._outbox.log("warning", text)

    # Who takes over. Survivors go on where they were, in new processes; spares are for what was lost, if there are any.

    def process_for(self, rank: int) -> m.SpareChosen | m.NoSpare | None:
        """Return the process in which the rank starts over, or NoSpare while that is to come. None: a spare is to be taken."""
        found = next((w for w in self._job.spares if w.started_for == rank), None)
        if found is not None and found.warm:
            self._job.workers[found.worker].rank = rank
            self._starting.discard(rank)
            return m.SpareChosen(rank, found.worker, f"rank {rank} starts over on {found.node}, as {found.worker}")
        if found is None and rank not in self._starting:
            if rank not in self._in_place or self._starts[rank] >= STARTS:
                return None
            self._starts[rank] += 1
            self._starting.add(rank)
            before = self._job.holder(rank)
            node = self._nodes[rank]
            own = before.worker if before.node == node else ""
            self._outbox.to_agent(node, StartWorker(rank, self._in_place_of.get(rank, own)))
        return m.NoSpare(rank, f"rank {rank} waits for the process in which it starts over", soon=True)

    def process_without_spare(self, rank: int) -> m.SpareChosen | m.NoSpare | None:
        """Return as `process_for` for a rank that no spare is left for, since those that it had could not take it over.

        It gets a place of its own, unless it had one before. None: there is none.
        """
        if rank in self._in_place:
            return None
        where = self.place_for(rank, self._in_place_of.values())
        if not where.node:
            return None
        self._in_place.add(rank)
        self._nodes[rank] = where.node
        self._in_place_of[rank] = where.in_place_of
        return self.process_for(rank)

    def starts_over(self, worker: str) -> bool:
        """Return whether the worker's rank goes on where it is, in a new process."""
        known = self._job.workers[worker]
        rank = known.rank if known.rank != NO_RANK else known.started_for
        return rank in self._in_place and self._nodes.get(rank) == known.node

    def started(self, node: str, message: LateWorker, now_s: float) -> None:
        if message.pid == 0:
            what = "a spare" if message.rank == NO_RANK else f"a process for rank {message.rank}"
            self._outbox.log("warning", f"{node} could not start {what}: {message.reason}")
            self._starting.discard(message.rank)
            return
        if message.worker in self._job.workers and message.rank not in self._in_place:
            return  # the controller before this one went back: a spare like any other
        worker = self._job.workers.get(message.worker) or Worker(
            message.worker, node, message.pid, NO_RANK, came_s=now_s, news_s=now_s
        )
        worker.started_for = message.rank
        worker.in_place_of = message.in_place_of
        self._job.workers[message.worker] = worker

    def ended(self, worker: Worker) -> None:
        """Take note that a process that was started for a rank has ended before it was given the rank."""
        self._starting.discard(worker.started_for)
