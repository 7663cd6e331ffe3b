"""Lets a job begin again: waits until there is a process for every rank, then lets all of them in, from a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torchrelay.controller.checkpoints.checkpoint import JobCheckpoint, parse_checkpoint
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.worker import Worker
from torchrelay.protocol.errors import CheckpointError
from torchrelay.protocol.kube.local_ranks import local_world_size
from torchrelay.protocol.messages import AsideSet, Begin, CheckpointFile, FetchCheckpoint, SetAside
from torchrelay.protocol.names import ENV_CHECKPOINT


@dataclass(frozen=True)
class RestartPlan:
    """How the job begins again.

    `directory`: a just-in-time checkpoint, from which ranks enter their loops. Empty: scripts run from their beginning.
    `checkpoint`: one of the script's own, which it is to find by itself; those in `aside` are renamed first.
    `launch`: what the launcher has told each rank.
    """

    launch: Mapping[int, Mapping[str, str]]
    directory: str = ""
    checkpoint: str = ""
    aside: tuple[str, ...] = ()
    step: int = -1


class Gathering:
    """Waits for the processes. `resume(checkpoint, directory, now_s)` is called when all are there.

    `failed(reason)` is called if the checkpoint is of no use.
    """

    def __init__(
        self,
        restart: RestartPlan,
        job: Job,
        outbox: Outbox,
        resume: Callable[[JobCheckpoint, str, float], None],
        failed: Callable[[str], None],
    ) -> None:
        self.restart = restart
        self._job = job
        self._outbox = outbox
        self._resume = resume
        self._failed = failed
        self._files: dict[str, bytes] = {}
        self._checkpoint: JobCheckpoint | None = None
        self._reader = ""
        self._renamer = ""
        self._aside_done = not restart.aside
        self.is_over = False

    @property
    def state(self) -> str:
        """In words, how many processes are there."""
        warm = self._warm()
        pods = self._job.world_size // self._job.local_world_size
        there = sum(min(pods, len(those)) for those in self._by_local_rank(warm))
        return f"{there} of {self._job.world_size} processes are there to begin again"

    def attached(self, node: str) -> None:
        """Have the first agent that comes read the checkpoint."""
        if self.restart.directory and not self._reader and self._checkpoint is None:
            self._reader = node
            self._files.clear()
            self._outbox.to_agent(node, FetchCheckpoint(self.restart.directory))

    def detached(self, node: str) -> None:
        if node == self._reader and self._checkpoint is None:
            self._reader = ""

    def file(self, node: str, part: CheckpointFile) -> None:
        if node != self._reader or part.directory != self.restart.directory:
            return
        if not part.last:
            self._files[part.name] = part.data
            return
        if part.reason and not self._files:
            self._fail(part.reason)
            return
        try:
            self._checkpoint = parse_checkpoint(part.directory, self._read, self._job.world_size)
        except CheckpointError as e:
            self._fail(str(e))

    def aside_set(self, worker: str, answer: AsideSet) -> None:
        if worker != self._renamer:
            return
        if answer.reason:
            self._fail(f"a checkpoint that must not be taken cannot be renamed: {answer.reason}")
        self._aside_done = True

    def settle(self, now_s: float) -> None:
        """Begin, once all processes are there."""
        warm = self._warm()
        pods = self._job.world_size // self._job.local_world_size
        if self.is_over or any(len(those) < pods for those in self._by_local_rank(warm)):
            return
        if self.restart.directory:
            if self._checkpoint is not None:
                self.is_over = True
                self._resume(self._checkpoint, self.restart.directory, now_s)
        elif self._aside_done:
            self.is_over = True
            self._begin(warm)
        elif self._renamer not in {w.worker for w in warm}:
            self._renamer = warm[0].worker
            self._outbox.to_worker(self._renamer, SetAside(self.restart.aside))

    def _warm(self) -> list[Worker]:
        job = self._job
        return [
            w for w in job.spares if w.warm and not job.nodes[w.node].lost and job.nodes[w.node].away_since_s is None
        ]

    def _by_local_rank(self, warm: list[Worker]) -> list[list[Worker]]:
        """Return the processes of each local rank: each process is for ranks of its own local rank."""
        return [[w for w in warm if w.local_rank == n] for n in range(self._job.local_world_size)]

    def _fail(self, reason: str) -> None:
        self.is_over = True
        self._failed(reason)

    def _read(self, name: str) -> bytes:
        try:
            return self._files[name]
        except KeyError as e:
            raise FileNotFoundError(f"{name} is not there") from e

    def _begin(self, warm: list[Worker]) -> None:
        job = self._job
        chosen = assign_ranks(warm, job.world_size, job.local_world_size)
        master = job.nodes[chosen[0].node].host
        for rank, worker in sorted(chosen.items()):
            env = {**without_agents_store(launch_of(self.restart.launch, rank)), "MASTER_ADDR": master}
            if self.restart.checkpoint:
                env[ENV_CHECKPOINT] = self.restart.checkpoint
            worker.rank = rank
            job.holders[rank] = worker.worker
            job.launch[rank] = env
            self._outbox.log("info", f"{worker.worker} begins again as rank {rank}")
            self._outbox.to_worker(worker.worker, Begin(worker.worker, "", False, env))


def assign_ranks(warm: list[Worker], world_size: int, local_world_size: int) -> dict[int, Worker]:
    """Choose a process for each rank. `warm`: at least one process for each rank.

    A process that was made for a rank gets it, so that its pod's name and its rank agree where they can. Pods all of whose
    processes are there get ranks that belong together.
    """
    chosen = {
        w.home_rank: w
        for w in reversed(warm)
        if 0 <= w.home_rank < world_size and w.home_rank % local_world_size == w.local_rank
    }
    pods: dict[str, dict[int, Worker]] = {}
    for w in warm:
        if w not in chosen.values():
            pods.setdefault(w.node, {}).setdefault(w.local_rank, w)
    whole = [of_pod for of_pod in pods.values() if len(of_pod) == local_world_size]
    for first in range(0, world_size, local_world_size):
        ranks = range(first, first + local_world_size)
        if whole and not any(rank in chosen for rank in ranks):
            chosen.update(zip(ranks, (w for _, w in sorted(whole.pop(0).items()))))
    for rank in range(world_size):
        if rank not in chosen:
            taken = {w.worker for w in chosen.values()}
            chosen[rank] = next(w for w in warm if w.worker not in taken and w.local_rank == rank % local_world_size)
    return chosen


def without_agents_store(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without the store of torchrun's agent.

    The agent of rank 0 serves the store that ranks meet in. That store has seen them meet, or is gone.
    """
    if env.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return dict(env)
    port = int(env["MASTER_PORT"])
    return {**env, "TORCHELASTIC_USE_AGENT_STORE": "False", "MASTER_PORT": str(port + 1 if port < 65535 else port - 1)}


def launch_of(launch: Mapping[int, Mapping[str, str]], rank: int) -> dict[str, str]:
    """Return what a rank's launcher has told it.

    Where that is not known, return what another rank was told, with this rank's numbers.
    """
    if rank in launch:
        return dict(launch[rank])
    other = dict(next(iter(launch.values()), {}))
    if (here := local_world_size(other)) == 1:
        return {**other, "RANK": str(rank)}
    own = {"RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": rank % here, "GROUP_RANK": rank // here}
    return {**other, **{name: str(number) for name, number in own.items()}}
