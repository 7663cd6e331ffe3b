"""A job in memory: the real core, and agents and shims that answer as real ones do, on virtual time."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torchrelay.controller.checkpoints.checkpoint import JobCheckpoint
from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.core import Core
from torchrelay.controller.restart.job_restart import RestartPlan
from torchrelay.protocol import messages as msg
from torchrelay.protocol.events import Occurrence, from_job_event
from torchrelay.protocol.health.policy import HealthPolicy
from torchrelay.protocol.names import NO_RANK

TICK_S = 0.05


class FakeJob:
    """`boundary`: where every rank is. Workers in `mute` take orders and say nothing, nodes in `silent` nothing at all.

    Ranks are on `nnodes` nodes, as many on each; all spares are on the first one. Those in `missing` do not come. `programs`: by
    node, what it was told to run.
    """

    def __init__(
        self,
        folder: Path,
        world_size: int = 3,
        spares: int = 1,
        *,
        nnodes: int = 1,
        spares_elsewhere: int = 0,
        checkpoint: JobCheckpoint | None = None,
        config: dict[str, Any] | None = None,
        health: HealthPolicy | None = None,
        restart: RestartPlan | None = None,
        files: dict[str, bytes] | None = None,
        missing: Collection[str] = (),
        programs: Mapping[str, msg.Program] | None = None,
    ) -> None:
        self.config = ControllerConfig(
            run_id="run",
            nnodes=nnodes,
            nproc_per_node=world_size // nnodes,
            secret_file="",
            address_file="",
            jit_dir=str(folder),
            master_addr="127.0.0.1",
            master_port=29500,
            resume_dir=str(folder) if checkpoint else "",
            resume_command="torchrelay run --resume {directory} train.py",
            **(config or {}),
        )
        self.programs = programs or {}
        self.core = Core(self.config, lambda: 0.0, checkpoint, health, restart)
        self.now_s = 10.0
        self.boundary = 5
        local = world_size // nnodes
        workers = [f"n{r // local}.w{r % local}" for r in range(world_size)]
        self.ranks = {} if checkpoint or restart else {worker: r for r, worker in enumerate(workers)}
        self.spares = workers if checkpoint or restart else []
        self.spares += [f"n0.s{i}" for i in range(spares)]
        self.spares += [f"n1.s{i}" for i in range(spares_elsewhere)]
        self.wanted, self.made = spares, spares
        self.mute: set[str] = set()
        self.without_journals: set[str] = set()
        """Whose journals nobody has."""
        self.copied: dict[str, list[int | None]] = {}
        """Up to which boundary somebody's journals are kept, read by read; None: no answer. The last one stays."""
        self.dead: set[str] = set()
        self.silent: set[str] = set()
        self.joining: set[str] = set()
        self.states: dict[str, str] = {}
        self.phases: dict[str, str] = {}
        self.waiting: set[str] = set()
        self.count = 0
        self.still: set[str] = set()
        self.asleep: set[str] = set()
        self.cut_off: set[str] = set()
        """Whose connections to all others are dead."""
        self.moved_s: dict[str, float] = {}
        self.waited_s: dict[str, float] = {}
        self.busy_s: dict[str, float] = {}
        self.files = dict(files or {})
        """Of checkpoints, that ranks have written by order."""
        self.kept: dict[str, tuple[msg.KeptCopy, ...]] = {}
        """By node, the copies that its agent finds."""
        self.refuses_to_serve: dict[str, str] = {}
        self.saves_for_long: set[str] = set()
        """Workers that do not come to the end of a save."""
        self.full: list[str] = []
        """Folders that no rank can write to."""
        """By folder of a copy, why it cannot be given."""
        self.damaged_here: set[str] = set()
        self.differed = ""
        """Folders of copies from which nobody can enter."""
        self.gone_for_good: set[str] = set()
        """Who does not begin anew in its place."""
        self.cold = False
        """Whether what is started stays at its imports."""
        self.started = 0
        self.unstartable: set[int] = set()
        self.rehearsers = 0
        self.no_memory = ""
        """Why nothing is started to rehearse."""
        self.rehearsed: dict[int, tuple[str, str]] = {}
        """By rank, how a rehearsal of it ends, and why."""
        self.orders: list[msg.ToAgent] = []
        self.sent_to: list[tuple[str, msg.ToAgent]] = []
        self.events: list[Occurrence] = []
        self.due: deque[tuple[str, msg.FromAgent]] = deque()
        infos = [msg.WorkerInfo(w, r, 100 + r) for w, r in self.ranks.items()]
        self.spares = [w for w in self.spares if _node_of(w) not in missing]
        infos += [msg.WorkerInfo(w, -1, 200 + i) for i, w in enumerate(self.spares)]
        self.infos = infos
        for number in range(nnodes):
            if f"n{number}" not in missing:
                self.attach(f"n{number}")

    def attach(self, node: str) -> None:
        """The node's agent is there, for the first time or again."""
        own, number = tuple(i for i in self.infos if _node_of(i.worker) == node), int(node[1:].partition("-")[0])
        wanted = self.wanted if number == 0 else 0
        hello = msg.AgentHello(
            node,
            number,
            f"10.0.0.{number + 1}",
            own,
            copies_port=9100,
            copies_token=node.encode(),
            spares=wanted,
            program=self.programs.get(node, msg.Program()),
        )
        self.core.attach(hello, self.now_s)
        self._collect()

    def warm(self) -> None:
        for worker in list(self.spares):
            self.say(worker, msg.Warm("2.13"))

    def train(self) -> None:
        """Everybody gets into the training loop, protected, with replicas known."""
        self.warm()
        for worker, rank in self.ranks.items():
            self.say(worker, msg.Armed(rank, self.config.world_size, "gloo", "2.13"))
        self.progress()
        for worker in self.ranks:
            self.say(worker, msg.ReplicaCheck(3, {"weight": "aa"}, ("weight",)))

    def progress(self) -> None:
        self.count += 1
        workers = tuple(
            msg.WorkerProgress(
                worker,
                self.boundary,
                self.boundary,
                self.phases.get(worker, "body"),
                worker in self.waiting,
                0 if worker in self.still else self.count,
                self.states.get(worker, "S"),
                *self._ages_s(worker),
                self.waited_s.get(worker, 0.0),
            )
            for worker in (*self.ranks, *self.spares)
            if worker not in self.dead and (worker in self.ranks or self.states.get(worker))
        )
        for node in sorted({_node_of(w.worker) for w in workers}):
            self.give(msg.Progress(tuple(w for w in workers if _node_of(w.worker) == node)), node)

    def _ages_s(self, worker: str) -> tuple[float, float]:
        """How long ago it moved, and was seen at work."""
        if worker not in self.still or worker not in self.moved_s:
            self.moved_s[worker] = self.now_s
        if self.states.get(worker) in ("R", "D") or worker not in self.busy_s:
            self.busy_s[worker] = self.now_s
        return self.now_s - self.moved_s[worker], self.now_s - self.busy_s[worker]

    def say(self, worker: str, report: msg.ShimReport) -> None:
        self.give(msg.FromWorker(worker, report))

    def give(self, message: msg.FromAgent, node: str = "") -> None:
        """`node`: who says it, unless it is the one of the worker that it is about."""
        node = node or _node_of(getattr(message, "worker", "n0"))
        if node not in self.silent:
            self.core.receive(node, message, self.now_s)
            self._collect()

    def tick(self, seconds: float = TICK_S) -> None:
        """Time passes, with progress from the agent as it does."""
        end_s = self.now_s + seconds
        while self.now_s < end_s - 1e-9:
            self.now_s += TICK_S
            self.progress()
            self.core.tick(self.now_s)
            self._collect()

    def _explain(self) -> None:
        """Shims say at once what their threads do; everything else waits for `settle`."""
        said = (d for d in self.due if isinstance(d[1], msg.FromWorker) and isinstance(d[1].report, msg.Explained))
        if (first := next(said, None)) is not None:
            self.due.remove(first)
            self.give(first[1], first[0])  # which looks for more

    def _links(self, worker: str) -> tuple[msg.LinkState, ...]:
        """One connection to each other rank, as after a look of half a second; the first one comes a second after it moved."""
        probed_s = max(self.now_s - self.moved_s.get(worker, self.now_s) - 1.0, 0.0) + 0.5
        links = []
        for other in sorted(self.ranks.keys() - {worker}):
            dead_s = probed_s if self.cut_off & {worker, other} else 0.0
            links.append(msg.LinkState(f"{worker}:{other}", f"{other}:{worker}", dead_s, probed_s, dead_s or 0.5))
        return tuple(links)

    def die(self, worker: str, signal: int = 9, exit_code: int = 0) -> None:
        self.dead.add(worker)
        self.give(msg.WorkerExited(worker, 128 + signal if signal else exit_code, signal, False))

    def settle(self, limit: int = 500) -> None:
        """Everybody answers until nobody has anything to say."""
        for _ in range(limit):
            if not self.due:
                return
            self.now_s += 0.01
            node, message = self.due.popleft()
            self.give(message, node)
        raise AssertionError("no end of it")

    def sent(self, kind: type) -> dict[str, Any]:
        """Worker -> its last order of that kind."""
        return {o.worker: o.order for o in self.orders if isinstance(o, msg.ToWorker) and isinstance(o.order, kind)}

    def told(self, kind: type) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind)]

    @property
    def stop(self) -> msg.StopJob | None:
        stops = [o for o in self.orders if isinstance(o, msg.StopJob)]
        assert len(stops) <= 1, "the job was stopped twice"
        return stops[0] if stops else None

    def _collect(self) -> None:
        orders, events = self.core.take()
        for event in events:
            json.loads(event.fields_json)
            self.events.append(from_job_event(event))
        for node, order in orders:
            self.orders.append(order)
            self.sent_to.append((node, order))
            if node not in self.silent:
                self.due.extend((node, m) for m in self._answers(order, node))
        self._explain()

    def _answers(self, order: msg.ToAgent, node: str) -> list[msg.FromAgent]:
        if isinstance(order, msg.FetchKept):
            return [*(msg.KeptCopies((copy,), False) for copy in self.kept.get(node, ())), msg.KeptCopies()]
        if isinstance(order, msg.FetchCheckpoint):
            files = [msg.CheckpointFile(order.directory, name, data) for name, data in self.files.items()]
            return [*files, msg.CheckpointFile(order.directory, "", last=True)]
        if isinstance(order, msg.StartWorker):
            return self._start(order, node)
        if isinstance(order, msg.StartRehearser):
            return self._start_rehearser(node)
        if isinstance(order, msg.Fence):
            self.dead.add(order.worker)
            ended: msg.FromAgent = msg.WorkerExited(order.worker, 137, 9, True)
            return [ended, *self._anew(order.worker, node)] if self._comes_again(order) else [ended]
        if isinstance(order, msg.FetchJournal):
            if order.worker in self.without_journals:
                return [msg.JournalContent(order.worker)]
            reads = self.copied.get(order.worker, [self.boundary])
            b = reads.pop(0) if len(reads) > 1 else reads[0]
            if b is None:
                return []
            journals = {n: f"{order.worker}@{n}".encode() for n in (b - 1, b)}
            return [msg.JournalContent(order.worker, journals, {b - 1: b"gate"}, b"set-up")]
        if not isinstance(order, msg.ToWorker) or order.worker in self.mute | self.dead:
            return []
        return [msg.FromWorker(order.worker, report) for report in self._reports(order.worker, order.order)]

    def _comes_again(self, order: msg.Fence) -> bool:
        return order.again and self.config.adopted and order.worker not in self.gone_for_good

    def add_spare(self, worker: str) -> None:
        """One more, which is warm."""
        self.spares.append(worker)
        self.give(msg.WorkerStarted(worker, -1, 400))
        self.say(worker, msg.Warm("2.13"))

    def _anew(self, worker: str, node: str) -> list[msg.FromAgent]:
        """In a pod: the process begins again in its place, as the rank of its environment, and asks."""
        rank, again = self.ranks[worker], f"{node}.a{self.started}"
        self.started += 1
        self.spares.append(again)
        started = msg.WorkerStarted(again, rank, 300, {"RANK": str(rank)})
        return [started, msg.LateWorker(again, rank, 300), msg.FromWorker(again, msg.Warm("2.13"))]

    def _start(self, order: msg.StartWorker, node: str) -> list[msg.FromAgent]:
        rank = order.rank
        if self.config.adopted:
            return [msg.LateWorker("", rank, 0, "its process has ended, and the agent of a pod cannot start one")]
        is_spare = rank == NO_RANK
        worker = f"{node}.s{self.made}" if is_spare else f"{node}.r{self.started}"
        if rank in self.unstartable:
            return [msg.LateWorker(worker, rank, 0, "no memory", order.in_place_of)]
        self.started, self.made = self.started + (not is_spare), self.made + is_spare
        self.spares.append(worker)
        late = msg.LateWorker(worker, rank, 300, in_place_of=order.in_place_of)
        return [late] if self.cold else [late, msg.FromWorker(worker, msg.Warm("2.13"))]

    def _start_rehearser(self, node: str) -> list[msg.FromAgent]:
        worker = f"{node}.t{self.rehearsers}"
        self.rehearsers += 1
        if self.no_memory:
            return [msg.RehearserStarted(worker, 0, self.no_memory)]
        return [msg.RehearserStarted(worker, 500), msg.FromWorker(worker, msg.Warm("2.13"))]

    def _reports(self, worker: str, order: msg.ShimOrder) -> list[msg.ShimReport]:  # noqa: C901 - one case for each order
        g, b = getattr(order, "generation", 0), self.boundary
        match order:
            case msg.Interrupt() if worker not in self.joining:
                return [msg.Standing(g, b, b, "body", "", "10.0.0.1", 7000)]
            case msg.Assign(rank=rank):
                self.ranks[worker] = rank
                self.spares.remove(worker)
                self.joining.add(worker)
                return [msg.Prepared(g, "10.0.0.1", 7001)]
            case msg.Interrupt():
                return [msg.Prepared(g, "10.0.0.1", 7001)]
            case msg.QuiesceAt(quiesce_id, _, boundary):
                self.quiesce = (g, boundary)
                return [msg.QuiesceAnswer(quiesce_id, True, b)]
            case msg.QuiesceDecided(_, True):
                g, self.boundary = self.quiesce
                return [msg.Standing(g, self.boundary, self.boundary, "head", "", "10.0.0.1", 7000)]
            case msg.Serve(kept=folder) if folder in self.refuses_to_serve:
                return [msg.OrderFailed(g, "Serve", self.refuses_to_serve[folder])]
            case msg.Serve():
                return [msg.Serving(g, "10.0.0.1", 9000)]
            case msg.Plan(kept=folder) if folder in self.damaged_here:
                return [msg.OrderFailed(g, "join", f"JournalError: {folder}: the content of w is not what was copied")]
            case msg.Plan(action="enter" | "shadow"):
                return [msg.Transferred(g, 4096, 2, 0.1, self.differed)]
            case msg.Rebuild():
                return [msg.Rebuilt(g, 0.1), msg.Verified(g)]
            case msg.Commit():
                self.joining.discard(worker)
                return [msg.Resumed(g, 1), msg.FirstStep(g, b + 1)]
            case msg.SaveCheckpoint(directory=directory) if any(map(directory.startswith, self.full)):
                return [msg.OrderFailed(g, "SaveCheckpoint", f"OSError: {directory} is full", unharmed=True)]
            case msg.SaveCheckpoint() if worker in self.saves_for_long:
                return []
            case msg.SaveCheckpoint(save_tensors=save):
                return [msg.CheckpointSaved(g, 4096 if save else 0)]
            case msg.KeepFile(name=name, data=data, last=last):
                self.files[name] = self.files.get(name, b"") + data
                return [msg.FilesKept(g)] if last else []
            case msg.SetAside():
                return [msg.AsideSet()]
            case msg.Explain(request=request):
                asleep, links = worker in self.asleep, self._links(worker)
                return [msg.Explained(request, ("f (train.py:3)",), "still", "itself", asleep, links)]
            case msg.Ping(number):
                return [msg.Pong(number)]
            case msg.Rehearse(request, rank, _, boundary):
                outcome, reason = self.rehearsed.get(rank, ("same", ""))
                gaps = (msg.Gap("rehearsal", "no-joiner", reason, "train.py", 7),) if reason else ()
                return [msg.Rehearsed(request, rank, boundary, outcome, reason, gaps)]
            case msg.MayFinish():
                return []
        return []


def _node_of(worker: str) -> str:
    return worker.partition(".")[0]
