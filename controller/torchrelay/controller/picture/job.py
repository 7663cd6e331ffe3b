"""The controller's picture of the job: nodes, workers, the holder of each rank, how fast it goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from torchrelay.controller.decide.listed import listed
from torchrelay.controller.decide.replacement.joins import JoinFailure
from torchrelay.controller.decide.replacement.replaceable import replaceable
from torchrelay.controller.picture.node import Node
from torchrelay.controller.picture.rank_journal import RankJournal
from torchrelay.controller.picture.rehearsal_book import RehearsalBook
from torchrelay.controller.picture.step_clock import StepClock
from torchrelay.controller.picture.worker import Worker
from torchrelay.controller.picture.worker_book import WorkerBook
from torchrelay.protocol.kube import local_ranks
from torchrelay.protocol.messages import AgentHello, ReplicaCheck, WorkerInfo
from torchrelay.protocol.names import NO_RANK
from torchrelay.protocol.transport.telling import TELL_S

CHECKS_KEPT = 6


class Job:
    """The job. `holders`: rank -> worker of the generation in force; `generation`: the newest that was ever used."""

    def __init__(self, world_size: int, losses_barred: str = "") -> None:
        self.world_size = world_size
        self.nodes: dict[str, Node] = {}
        self.machines: dict[str, str] = {}
        """Node -> the machine that it is on, where nodes share machines."""
        self.workers = WorkerBook()
        self.holders: dict[int, str] = {}
        self._in_order: tuple[dict[int, str], list[str]] = {}, []
        """Holders, and their names by rank, as they were last asked for."""
        self.launch: dict[int, dict[str, str]] = {}
        """What the launcher has told each rank, where that was not an agent."""
        self.checks: dict[int, list[ReplicaCheck]] = {}
        self.checks_left: dict[int, list[ReplicaCheck]] = {}
        """Checks of boundaries from which all ranks have gone back."""
        self.journals: dict[int, RankJournal] = {}
        self.quarantine: dict[str, str] = {}
        """Device or node -> why it is given no rank."""
        self.losses_barred = losses_barred
        """Why lost ranks are not replaced, by the user's choice."""
        self.spares_coming = 0
        """Spares that are being made elsewhere, and that have not come yet."""
        self.spares_wanted = 0
        """How many spares there are to be. Their maker may not have noticed yet that one is missing."""
        self.starting_again: set[str] = set()
        """Nodes on which a process that has ended is started again: it comes as a spare."""
        self.not_again: dict[str, str] = {}
        """The other nodes -> why no process is started again there, where that is known."""
        self.local_world_size = 1
        """How many processes are in each pod. 1, too, where agents start them, and every spare can take every rank."""
        self.rehearsals = RehearsalBook()
        self.join_failures: list[JoinFailure] = []
        """Failed joins of the lost ranks that are being replaced now, in the order in which they were told."""
        self.generation = 0
        self.gate_secret = b""
        """The secret of the first generation, once ranks have been told it: by this controller, or by one before it."""
        self.protection = "pending"
        self.protection_reason = "no rank has set up its process group yet"
        self.clock = StepClock()
        self.imports: dict[str, str] = {}
        """Node -> what the script imports from its folder there, as a key of `same_program.imports_key`."""
        self.imports_differ = False
        """Whether these keys differ. Ranks stay on nodes with the same key then."""
        self.ranks_per_node = 0
        """How many ranks each node has in the beginning, in the order of nodes; 0: others choose."""
        self.tell_s = TELL_S
        """How often agents were asked to tell of ranks that move on."""

    def attach(self, hello: AgentHello, now_s: float) -> None:
        """Take in a node, or one that is back: what is known of its workers stays."""
        self.nodes[hello.node] = Node(
            hello.node,
            hello.node_rank,
            hello.host,
            hello.copies_port,
            hello.copies_token,
            now_s,
            copies_of=hello.copies_of,
            spares=hello.spares,
        )
        for info in hello.workers:
            if (known := self.workers.get(info.worker)) is not None:
                known.pid = info.pid
            else:
                self.add(hello.node, info, info.rank, now_s)

    def add(self, node: str, info: WorkerInfo, rank: int, now_s: float) -> None:
        """Take in a process that has not been seen before, as `rank` or as a spare."""
        known = local_ranks.place(info.launch) if info.launch else max(rank, 0)
        local_rank = known % self.local_world_size
        self.workers[info.worker] = Worker(
            info.worker, node, info.pid, rank, came_s=now_s, news_s=now_s, local_rank=local_rank
        )
        if rank != NO_RANK:
            self.holders.setdefault(rank, info.worker)
            if info.launch:
                self.launch[rank] = info.launch

    def forget(self, worker: Worker) -> None:
        """Drop a process that has ended before it took part in anything."""
        self.workers.forget(worker.worker)
        if self.is_holder(worker):
            del self.holders[worker.rank]

    def holder(self, rank: int) -> Worker:
        return self.workers[self.holders[rank]]

    def is_holder(self, worker: Worker) -> bool:
        return self.holders.get(worker.rank) == worker.worker

    def by_node(self) -> dict[str, list[Worker]]:
        """Return the workers of each node, at the price of one look at all."""
        found: dict[str, list[Worker]] = {}
        for worker in self.workers.values():
            found.setdefault(worker.node, []).append(worker)
        return found

    @property
    def rank_workers(self) -> list[Worker]:
        if self._in_order[0] != self.holders:
            self._in_order = dict(self.holders), [w for _, w in sorted(self.holders.items())]
        return [self.workers[w] for w in self._in_order[1]]

    @property
    def spares(self) -> list[Worker]:
        return sorted((w for w in self.workers.values() if w.rank == NO_RANK and w.is_spare), key=lambda w: w.worker)

    def spares_for(self, rank: int, spares: Sequence[Worker] | None = None) -> list[Worker]:
        """Return the spares that may take over the rank. `spares`: all, where somebody has looked for them already."""
        local_rank = rank % self.local_world_size
        among = self.spares if spares is None else spares
        return [w for w in among if w.local_rank == local_rank and self.may_go_on(rank, w.node)]

    def may_go_on(self, rank: int, node: str) -> bool:
        """Return whether the script imports the same on `node` as where the rank is, or was.

        With other files it computes something else.
        """
        if not self.imports_differ:
            return True
        home = self.holder(rank).node if rank in self.holders else self._first_home(rank)
        return node == home or (bool(self.imports.get(home)) and self.imports[home] == self.imports.get(node))

    def alike(self, node: str) -> set[str]:
        """Return the other nodes on which ranks of this one may go on."""
        own = self.imports.get(node)
        return {
            n for n in self.nodes if n != node and (not self.imports_differ or (own and self.imports.get(n) == own))
        }

    def _first_home(self, rank: int) -> str:
        """Return the node that the rank begins on; empty if it is not there."""
        number = rank // self.ranks_per_node if self.ranks_per_node else -1
        return next((n.node for n in self.nodes.values() if n.node_rank == number), "")

    def most_to_come(self, spares: Sequence[Worker]) -> int:
        """Return how many spares are to come for the ranks that most are to come for. `spares`: all that are there."""
        again = Counter[int]()
        for node in self.starting_again:
            if node in self.nodes and not self.nodes[node].lost:
                there = {w.local_rank for w in self.workers.on(node) if w.alive}
                again.update(i for i in range(self.local_world_size) if i not in there)
        return max(self._to_come(i, spares) + again[i] for i in range(self.local_world_size))

    def spares_to_come(self, rank: int) -> int:
        """Return how many spares are to come for the rank. Each pod that is made brings one."""
        again = sum(self.is_started_again(node, rank) for node in self.starting_again)
        return self._to_come(rank, self.spares) + again

    def _to_come(self, rank: int, spares: Sequence[Worker]) -> int:
        return max(self.spares_coming, self.spares_wanted - len(self.spares_for(rank, spares)))

    def is_started_again(self, node: str, rank: int) -> bool:
        """Return whether a process for ranks with the same local rank is to come there, in the place of one that has ended."""
        if node not in self.starting_again or node not in self.nodes or self.nodes[node].lost:
            return False
        local_rank = rank % self.local_world_size
        return not any(w.alive and w.local_rank == local_rank for w in self.workers.on(node))

    @property
    def boundary(self) -> int:
        """The boundary that every rank has reached."""
        return min((w.seen_boundary for w in self.rank_workers), default=-1)

    def journal(self, rank: int) -> RankJournal:
        return self.journals.setdefault(rank, RankJournal())

    def move(self, rank: int, worker: str, boundary: int) -> None:
        """Give the rank to the worker from now on, which has entered at `boundary`."""
        self.holders[rank] = worker
        known = self.workers[worker]
        known.seen_boundary = max(known.seen_boundary, boundary)

    def add_check(self, rank: int, check: ReplicaCheck) -> None:
        """Take note of what a rank holds. Of a boundary that it reached anew, in another loop, only the latest check counts."""
        others = [c for c in self.checks.get(rank, ()) if c.boundary != check.boundary]
        self.checks[rank] = [*others, check][-CHECKS_KEPT:]

    def distrust_newest_check(self, rank: int) -> None:
        """Drop the rank's newest check, which is suspected to be wrong: only what was checked before counts."""
        if self.checks.get(rank):
            self.checks[rank].pop()

    def go_back(self, boundary: int) -> None:
        """Let all ranks enter anew at `boundary`: what was said of later boundaries is of processes that are gone."""
        self.journals.clear()
        for rank, checks in self.checks.items():
            left = [*self.checks_left.get(rank, ()), *(c for c in checks if c.boundary > boundary)]
            self.checks_left[rank] = left[-CHECKS_KEPT:]
            self.checks[rank] = [c for c in checks if c.boundary <= boundary]
        self.clock.go_back()

    def quarantined(self, worker: Worker) -> str:
        """Return why the worker must be given no rank, or empty."""
        return next((self.quarantine[s] for s in (worker.node, *worker.devices) if s in self.quarantine), "")

    def vacated(self, asked: Collection[str]) -> list[Worker]:
        """Return the processes that have ended and whose place is free. The place of a rank's holder is kept for the rank.

        `asked`: those in whose place another one is asked for that has not come yet.
        """
        taken = {w.in_place_of for w in self.workers.values()} | set(asked)
        return [
            w
            for w in self.workers.values()
            if not w.alive and not w.rehearses and w.worker not in taken and not self._is_kept(w)
        ]

    def free_gpus(self, node: Node, asked: Collection[str]) -> list[str]:
        """Return the GPUs of a machine on which a further process can be started. `asked`: those for which one is asked already."""
        taken = {w.in_place_of for w in self.workers.values()} | set(asked)
        usable = not self.unusable_machine(node)
        return [gpu for gpu in node.free_gpus if usable and gpu not in taken and gpu not in self.quarantine]

    def _is_kept(self, worker: Worker) -> bool:
        return self.is_holder(worker) and not self.is_lost_with_node(worker.worker)

    def unusable(self, worker: Worker) -> str:
        """Return why nothing must be started in the worker's place, or empty."""
        node = self.nodes[worker.node]
        return self.unusable_machine(node) or self.quarantined(worker)

    def unusable_machine(self, node: Node) -> str:
        if node.lost or node.released:
            return node.lost or "it has been let go"
        return self.quarantine.get(node.node, "") or ("its agent is away" if node.away_since_s is not None else "")

    def is_away(self, worker: Worker) -> bool:
        """Return whether the worker's agent cannot be told anything now."""
        node = self.nodes[worker.node]
        return bool(node.lost) or node.away_since_s is not None

    def host_of(self, worker: str) -> str:
        return self.nodes[self.workers[worker].node].host

    def home_of(self, rank: int) -> str:
        """Return the node that a new worker of the rank is best on; empty if it is not there."""
        if rank in self.holders:
            holder = self.holder(rank)
            return holder.copy_on if self.nodes[holder.node].lost and holder.copy_on else holder.node
        return self._first_home(rank)

    def is_gone(self, worker: Worker) -> bool:
        """Return whether the worker has not come to its end, and holds nothing any more."""
        return not worker.finishing and (not worker.alive or self.is_lost_with_node(worker.worker))

    def is_lost_with_node(self, worker: str) -> bool:
        return bool(self.nodes[self.workers[worker].node].lost)

    def node_with_journal(self, worker: str) -> str:
        """Return the node where the worker's journals can be read: its own node, or the one with copies; empty if there is none."""
        known = self.workers[worker]
        if not self.nodes[known.node].lost:
            return known.node
        keeper = self.nodes.get(known.copies_to)
        return keeper.node if keeper is not None and not keeper.lost else ""

    def unprotected_because(self, dead: str = "", planned: bool = False) -> str:
        """Return why a lost rank could not be replaced now, or moved if `planned`; empty if it could.

        `dead`: a worker whose exit with code 0 does not count.
        """
        if self.protection != "on":
            return self.protection_reason
        if self.losses_barred and not planned:
            return self.losses_barred
        for worker in self.rank_workers:
            if worker.exited is not None and worker.worker != dead and worker.exited.exit_code == 0:
                return f"rank {worker.rank} has ended already, and cannot take part in new communicators"
        verdict = replaceable({w.rank: w.report.gaps for w in self.rank_workers if w.report is not None})
        if not verdict.yes:
            return verdict.reason
        early = [w.rank for w in self.rank_workers if w.seen_boundary < 0]
        if early:
            return f"ranks {listed(early)} have not reached their training loop yet"
        return ""
