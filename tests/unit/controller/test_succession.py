"""The controller of a job in pods ends in the middle of a migration, at every point there is; another one takes over.

An order that was not given any more is lost with it. What agents have to say is kept for whoever comes next, or was taken by the
one that ended.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.fake_job import FakeJob

from torchrelay.controller.core import Core
from torchrelay.protocol import messages as msg
from torchrelay.protocol.names import NO_RANK

RANKS, LEAVER = 3, "n1.w0"
AGAIN_S = 25.0
"""More than a controller waits for anybody."""
IN_PODS: dict[str, Any] = {"adopted": True, "restarts": True, "respawn_limit": 3}


class Cluster(FakeJob):
    """`left`: how many more orders the controller gives before it ends; None: as many as it wants to."""

    def __init__(self, folder: Path, alone: bool = False) -> None:
        self.alone = alone
        self.left: int | None = None
        self.ended = False
        self.announced: dict[str, int] = {}
        self.in_force: dict[str, int] = {}
        self.protected: set[str] = set()
        self.exits: dict[str, msg.WorkerExited] = {}
        self.checks: dict[str, tuple[msg.ReplicaCheck, ...]] = {}
        """What an agent knows of each process: its own ones, and those that its rank had before it."""
        self.began: dict[str, int] = {}
        """In their place anew, with the rank of their environment; nobody may have told them yet what they are."""
        self.stand: set[str] = set()
        """Who does not train, until it is let go on."""
        super().__init__(
            folder,
            RANKS,
            2 * RANKS if alone else RANKS,
            nnodes=RANKS,
            config=IN_PODS | ({"buddy_every": 3} if alone else {}),
        )
        self.train()
        self.checks = {worker: (self._check_of(rank),) for worker, rank in self.ranks.items()}
        if alone:
            for worker, rank in self.ranks.items():
                self.say(worker, self._check_of(rank))
            copies = tuple(
                msg.KeptCopy(r, b, f"/kept/rank-{r}", b"copy", b"set-up", "layout")
                for r in range(RANKS)
                for b in (0, 3)
            )
            self.kept = {f"n{number}": copies for number in range(RANKS)}
        self.written = dict(self.core.job.holders)
        """What the controller has written down before the migration."""

    def _answers(self, order: msg.ToAgent, node: str) -> list[msg.FromAgent]:
        if self.left is not None:
            if self.left == 0:
                self.ended = True
                return []
            self.left -= 1
        if isinstance(order, msg.TellAgain):
            return self._said(node)
        if isinstance(order, msg.Inherits):
            self.checks[order.worker] = order.checks
        if isinstance(order, msg.ToWorker) and order.worker not in self.dead:
            self._take(order.worker, order.order)
        answers = super()._answers(order, node)
        self.exits |= {a.worker: a for a in answers if isinstance(a, msg.WorkerExited)}
        self.began |= {a.worker: a.rank for a in answers if isinstance(a, msg.WorkerStarted)}
        return answers

    def _take(self, worker: str, order: msg.ShimOrder) -> None:
        """As the agent does that passes it on."""
        self.announced[worker] = max(self.announced.get(worker, 0), getattr(order, "generation", 0))
        if isinstance(order, msg.Begin):
            self.in_force[worker] = -1 if order.spare else 0
        elif isinstance(order, msg.Commit):
            self.in_force[worker] = order.generation
            self.stand.discard(worker)
        elif isinstance(order, msg.Abandon):
            self.stand.discard(worker)
        elif isinstance(order, (msg.Interrupt, msg.QuiesceDecided)):
            self.stand.add(worker)
        elif isinstance(order, msg.Assign) or (isinstance(order, msg.Protect) and order.on):
            self.protected.add(worker)

    def _said(self, node: str) -> list[msg.FromAgent]:
        own = [w for w in self.announced if w.startswith(f"{node}.")]
        found: list[msg.FromAgent] = [msg.FromWorker(w, msg.Warm("2.13")) for w in own if w not in self.ranks]
        found += [msg.FromWorker(w, check) for w in own for check in self.checks.get(w, ())]
        return [*found, *(self.exits[w] for w in own if w in self.exits)]

    def _check_of(self, rank: int) -> msg.ReplicaCheck:
        if self.alone:
            return msg.ReplicaCheck(4, {"shard": f"of {rank}"})
        return msg.ReplicaCheck(3, {"weight": "aa"}, ("weight",))

    def die(self, worker: str, signal: int = 9, exit_code: int = 0) -> None:
        self.exits[worker] = msg.WorkerExited(worker, 128 + signal, signal, False)
        super().die(worker, signal, exit_code)

    def go_on_until_it_ends(self) -> None:
        while self.due and not self.ended:
            self.now_s += 0.01
            node, message = self.due.popleft()
            self.give(message, node)

    def succeed(self, unheard: bool, written: dict[int, str]) -> None:
        """Another controller. `unheard`: it is told what nobody has taken yet; `written`: what it finds of who had which rank."""
        self.core, self.left = Core(self.config, lambda: 0.0), None
        self.core.entrance.remember(written)
        waiting, self.due = list(self.due), type(self.due)()
        for number in range(RANKS):
            self.core.attach(self._hello(number), self.now_s)
            self._collect()
        self.due.extend(waiting if unheard else ())
        self.pass_time()

    def pass_time(self) -> None:
        """All answer as it passes, until all is well for a second, or it is clear that it will not be."""
        well_s, until_s = self.now_s, self.now_s + AGAIN_S
        self.settle()
        while self.now_s < min(until_s, well_s + 1.0):
            self.tick()
            self.settle()
            if self.core.driver.migration is not None or self._living() != self.core.job.holders:
                well_s = self.now_s

    def _living(self) -> dict[int, str]:
        return {rank: worker for worker, rank in self.ranks.items() if worker not in self.dead}

    def _hello(self, number: int) -> msg.AgentHello:
        own = [w for w in self.announced if w.startswith(f"n{number}.")]
        new = {w: r for w, r in self.began.items() if w.startswith(f"n{number}.") and w not in self.announced}
        infos = tuple(msg.WorkerInfo(worker, rank, 1, {}) for worker, rank in new.items())
        infos += tuple(
            msg.WorkerInfo(
                worker,
                self.ranks.get(worker, NO_RANK),
                1,
                {},
                self.announced[worker],
                worker in self.protected,
                self.in_force[worker],
            )
            for worker in own
        )
        return msg.AgentHello(
            f"n{number}", -1, f"10.0.0.{number + 1}", infos, copies_port=9100, copies_token=b"t", copies_of={LEAVER: 5}
        )

    def check(self) -> None:
        """Nothing is lost, nobody is left behind, and each rank lives once."""
        core = self.core
        assert (core.ended, core.fallen, core.driver.migration) == (None, None, None)
        assert core.job.protection == "on"
        living = {worker: rank for worker, rank in self.ranks.items() if worker not in self.dead}
        assert self._living() == core.job.holders
        assert sorted(living.values()) == list(range(RANKS)), "a rank lives twice, or not at all"
        assert not self.stand & set(living), "nobody tells them to go on"
        assert len({self.in_force[worker] for worker in living}) == 1, "one is in another generation than the others"


def interrupted(folder: Path, kind: str, orders: int) -> Cluster:
    """Its controller has given that many orders since the migration began."""
    job = Cluster(folder, alone=kind == "rollback")
    job.left = orders
    if kind == "planned":
        job.core.user_requests.migrate(msg.MigrateRequest(1, "its fan is loud"), job.now_s)
        job._collect()
    else:
        job.die(LEAVER)
    job.go_on_until_it_ends()
    return job


@pytest.mark.parametrize("unheard", [False, True], ids=["taken", "unheard"])
@pytest.mark.parametrize("late", [False, True], ids=["written", "not-written"])
@pytest.mark.parametrize("kind", ["planned", "unplanned", "rollback"])
def test_the_next_controller_finishes_or_takes_back_what_it_finds(
    tmp_path: Path, kind: str, late: bool, unheard: bool
) -> None:
    """`late`: the one that ended had written down nothing since the migration began."""
    phases, orders = set(), 0
    while (job := interrupted(tmp_path, kind, orders)).ended:
        phases.add(job.core.driver.phase)
        job.succeed(unheard, job.written if late else dict(job.core.job.holders))
        try:
            job.check()
            job.add_spare("n0.x")
            job.die(job.core.job.holders[2])
            job.pass_time()
            job.check()
        except AssertionError as e:
            raise AssertionError(f"after {orders} orders, in {phases}: {e}") from e
        orders += 1
    assert len(phases) >= 6, phases
    assert orders > 20, "it is ended often enough to be in all of them"


def test_a_new_controller_hears_of_checks_that_were_made_before_its_ranks_were_replaced(tmp_path: Path) -> None:
    """Or, until the next ones are made, it would not know that a rank which has taken over holds what another one loses."""
    job = Cluster(tmp_path)
    for worker in ("n0.w0", "n1.w0"):
        job.die(worker)
        job.pass_time()
    for node in ("n0", "n1"):
        job.exits = {w: e for w, e in job.exits.items() if not w.startswith(node)}  # a pod's agent goes with it
        for worker in [w for w in job.announced if w.startswith(f"{node}.w")]:
            del job.announced[worker]
    job.succeed(False, dict(job.core.job.holders))
    job.check()
    job.die("n2.w0")
    job.pass_time()
    job.check()
