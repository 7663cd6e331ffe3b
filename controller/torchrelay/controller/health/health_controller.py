"""Carries verdicts out: tells them, moves ranks, keeps devices in quarantine, and asks for a person when it is too much."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable

from torchrelay.controller.execution.driver import Driver
from torchrelay.controller.execution.planned_moves import PlannedMoves
from torchrelay.controller.health.corruption import odd_one_out
from torchrelay.controller.health.judge import HealthJudge
from torchrelay.controller.health.quarantine import Quarantine
from torchrelay.controller.health.stragglers import Stragglers
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.controller.picture.worker import Worker
from torchrelay.protocol.events import DevicesUsed, HealthVerdict
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.health.classify import DeviceVerdict
from torchrelay.protocol.health.history import SeenEvidence
from torchrelay.protocol.health.policy import HealthPolicy
from torchrelay.protocol.messages import (
    ClearReply,
    ClearRequest,
    DeviceChecked,
    HealthSignals,
    HealthSources,
    QuarantineReply,
    QuarantineRequest,
)
from torchrelay.protocol.names import EXIT_SUSPECT_NUMBER
from torchrelay.protocol.options.numbers import ALERT, STOP
from torchrelay.protocol.transport.telling import LATE_S
from torchrelay.protocol.words.causes import MigrationCause
from torchrelay.protocol.words.phases import PLANNED
from torchrelay.protocol.words.rank_words import ranks_with_verb

EXIT_PROGRAM = 1
EVENTS_THAT_SLOW = (k.HW_SLOWDOWN, k.PCIE_REPLAYS)
CAUSE_S = 600.0
HOT_C = 10.0
FULL_WIDTH = 1.0
SHORT_OF_CPU = 0.2
"""A level counts as the cause of a slow rank from here on: degrees left, share of the lanes, share of the time."""
STEP_OF_RATIO = 0.2
SILENT_STEP_S = 0.5
SILENT_STEP_SHARE = 0.1
"""A silence is noted again once it has grown by both: all that was noted of it is gone through each time."""
SILENT_S = 3.0
"""Silence from which on an agent counts as silent that has something to tell each second."""
VERDICTS_SHOWN = 5
MOST_GPU_CHARS = 128
"""Of what an agent says that a GPU is called: it goes to all who listen."""


class HealthController:
    """The devices of one job. `end_job(exit_code, reason)` ends the job. `replica_action`: see ControllerConfig."""

    def __init__(
        self,
        policy: HealthPolicy,
        job: Job,
        outbox: Outbox,
        driver: Driver,
        planned_moves: PlannedMoves,
        end_job: Callable[[int, str], None],
        replica_action: str = "",
    ) -> None:
        self._replica_action = replica_action
        self._job = job
        self._outbox = outbox
        self._driver = driver
        self._planned_moves = planned_moves
        self._end_job = end_job
        self.judge = HealthJudge(policy)
        self._quarantine = Quarantine(job, outbox, self.judge)
        self.why_not_quarantined: Callable[[str], str] = lambda node: ""
        """Returns why a node must not be put into quarantine on evidence; empty where it may."""
        self._stragglers = Stragglers()
        self._ratios: dict[str, float] = {}
        self._suspect: int | None = None
        self._silent: dict[str, float] = {}
        self._moving: dict[tuple[str, str], str] = {}
        """Node and subject of a notice -> the reason under which ranks are to move for it."""
        self._sources: dict[str, dict[str, str]] = {}
        self._gpus: dict[str, dict[str, str]] = {}
        """Node -> worker -> the UUID of its GPU, as the node has told."""
        self._verdicts: deque[str] = deque(maxlen=VERDICTS_SHOWN)

    def take_policy(self, policy: HealthPolicy) -> None:
        """Use another policy from now on. What has been seen and told stays."""
        self.judge.policy = policy

    @property
    def is_waiting(self) -> bool:
        return self.judge.is_waiting

    def signals(self, node: str, message: HealthSignals, now_s: float) -> None:
        for s in message.signals:
            seen = SeenEvidence(s.kind, now_s - s.age_s, node, s.device, s.worker, s.code, s.value, s.detail)
            worker = self._job.workers.get(s.worker)
            if s.kind == k.OOM_NODE and worker is not None and self._job.is_holder(worker):
                # Ranks are counted, not processes: a second time in another process is the same program.
                seen = dataclasses.replace(seen, node="", worker=f"rank {worker.rank}")
            self._see(seen, now_s)

    def sources(self, node: str, message: HealthSources) -> None:
        self._sources[node] = dict(message.sources)
        if node in self._job.nodes:
            self._job.nodes[node].free_gpus = message.free
        for worker, devices in message.devices.items():
            if (known := self._job.workers.get(worker)) is not None and known.node == node:
                known.devices = tuple(devices.split())
        gpus = {
            worker: gpu[:MOST_GPU_CHARS]
            for worker, gpu in message.gpus.items()
            if (known := self._job.workers.get(worker)) is not None and known.node == node
        }
        if gpus and gpus != self._gpus.get(node):
            self._gpus[node] = gpus
            self._outbox.emit(DevicesUsed(node, gpus))

    def tick(self, now_s: float) -> None:
        for node in self._job.nodes.values():
            self._hear(node.node, 0.0 if node.lost else now_s - node.heard_s, now_s)
        for verdict in self.judge.tick(now_s):
            self._carry_out(verdict, now_s)

    def _hear(self, node: str, silent_s: float, now_s: float) -> None:
        told_s = self._silent.get(node, 0.0)
        limit_s = max(SILENT_S, self._job.tell_s + LATE_S)
        if silent_s >= limit_s and silent_s - told_s >= max(SILENT_STEP_S, SILENT_STEP_SHARE * told_s):
            self._silent[node] = silent_s
        elif silent_s < limit_s and told_s:
            silent_s = self._silent[node] = 0.0
        else:
            return
        self._see(SeenEvidence(k.NODE_SILENT, now_s, node, "", "", 0, silent_s), now_s)

    def progress(self, now_s: float) -> None:
        """Look which rank needs long for its own part of a step. To be called after progress was told."""
        if self._driver.migration is not None or self._job.unprotected_because():
            self._stragglers.forget()
            return
        for worker in self._job.rank_workers:
            if worker.alive and worker.progress is not None:
                p = worker.progress
                waited_s = p.waited_s + (p.still_s if p.waiting else 0.0)
                self._stragglers.update(worker.rank, p.boundary, waited_s, worker.news_s)
        for rank, ratio in self._stragglers.ratios(self._job.world_size).items():
            worker = self._job.holder(rank)
            if abs(ratio - self._ratios.get(worker.worker, 1.0)) >= STEP_OF_RATIO:
                self._ratios[worker.worker] = ratio
                detail = self._why_slow(worker, now_s)
                self._see(SeenEvidence(k.STRAGGLER, now_s, worker.node, "", worker.worker, 0, ratio, detail), now_s)

    def checked(self, now_s: float) -> None:
        """Look whether a rank differs from all others. To be called after a replica check."""
        found = odd_one_out(self._job.checks, self._job.world_size)
        if found is None or found[0] == self._suspect or self._driver.migration is not None:
            return
        self._suspect = rank = found[0]
        self._job.distrust_newest_check(rank)
        worker = self._job.holder(rank)
        if self._replica_action in (ALERT, STOP):
            self._as_watched(worker, found[1])
            return
        self._see(SeenEvidence(k.SDC, now_s, worker.node, "", worker.worker, 0, 1.0, found[1]), now_s)

    def _as_watched(self, worker: Worker, reason: str) -> None:
        """Do about a differing rank what `--watch replicas` says, in place of the policy."""
        ends = self._replica_action == STOP
        action, outcome = (k.STOP, k.DONE) if ends else (k.WATCH, k.TOLD)
        ranks = (worker.rank,)
        self._outbox.emit(HealthVerdict(action, "replicas", worker.node, "", ranks, outcome, k.NOBODY, reason))
        self._verdicts.append(f"{action}: rank {worker.rank}: {reason}")
        if ends:
            self._end_job(EXIT_SUSPECT_NUMBER, reason)

    def ended(self, worker: Worker, text: str, exit_code: int, now_s: float) -> bool:
        """Take note of a rank that was ended by an error of native code, or hangs.

        Return whether the job ends for it. `text` says how.
        """
        detail = f"{text} in step {worker.seen_boundary + 1}"
        seen = SeenEvidence(k.EXIT, now_s, "", "", f"rank {worker.rank}", exit_code, 1.0, detail)
        verdict = self.judge.see(seen, now_s)
        if verdict is not None:
            self._carry_out(verdict, now_s)
        return verdict is not None and verdict.action == k.STOP and not verdict.observe

    def blamed(self, worker: Worker, now_s: float) -> str:
        """Return why the failure of this worker is its device's and not the program's, or empty."""
        return self.judge.blamed(worker.node, [*worker.devices, worker.worker], now_s)

    def loss_observed(self, worker: Worker, how: str) -> None:
        """Tell of a lost rank in a job that is only watched."""
        reason = f"{how}; not done: {self._job.protection_reason}"
        self._outbox.emit(
            HealthVerdict(k.REPLACE, "loss", worker.node, worker.worker, (worker.rank,), k.OBSERVED, k.NOBODY, reason)
        )
        self._verdicts.append(f"would {k.REPLACE}: rank {worker.rank}: {reason}")

    def quarantine(self, request: QuarantineRequest, now_s: float) -> QuarantineReply:
        """Put a subject into quarantine. A person's word is evidence like any other: the policy's rows for it say what follows."""
        subject = request.subject
        if subject in self._job.quarantine:
            return QuarantineReply(True, f"{subject} is in quarantine already: {self._job.quarantine[subject]}")
        is_node = subject in self._job.nodes
        node = subject if is_node else next((w.node for w in self._job.workers.values() if subject in w.devices), "")
        if not node:
            devices = sorted({d for w in self._job.workers.values() for d in w.devices})
            known = ", ".join([*sorted(self._job.nodes), *devices])
            return QuarantineReply(False, f"this job has no node and no device {subject}; it has {known}")
        if is_node and self._is_the_last(node):
            return QuarantineReply(
                False, f"{node} is the only node that this job can use: its ranks have nowhere to go"
            )
        what, about = ("quarantine", "quarantine") if is_node else ("device-quarantine", subject)
        said = SeenEvidence(
            k.NODE_CONDITION, now_s, node, about, detail=f"{what} ({_asked(request.reason, request.by)})"
        )
        self._see(dataclasses.replace(said, value=0.0), now_s)  # an earlier one that was cleared since
        self._see(said, now_s)
        if subject not in self._job.quarantine:
            return QuarantineReply(
                False, "the fault policy only observes, or has no row of quarantine for a person's word"
            )
        ranks = tuple(sorted(w.rank for w in self._job.rank_workers if subject in (w.node, *w.devices)))
        if not ranks:
            return QuarantineReply(True, f"{subject} is in quarantine; no rank runs there")
        staying = tuple(rank for rank in ranks if not self._planned_moves.is_wanted(rank))
        if staying:
            because = self._job.protection_reason if self._job.protection == "off" else "the limit on moves is reached"
            text = (
                f"{subject} is in quarantine; {ranks_with_verb(staying, 'stays', 'stay')} there all the same: {because}"
            )
            return QuarantineReply(True, text, tuple(rank for rank in ranks if rank not in staying), staying)
        who = ranks_with_verb(ranks, "moves to a spare", "move to spares")
        return QuarantineReply(True, f"{subject} is in quarantine; {who}", ranks)

    def _is_the_last(self, node: str) -> bool:
        """Whether ranks of this node have no other one to go to. Its own spares would be of no use any more, either."""
        others = (n for n in self._job.nodes.values() if n.node != node and n.node not in self._job.quarantine)
        return any(w.node == node for w in self._job.rank_workers) and all(n.lost for n in others)

    def clear(self, request: ClearRequest) -> ClearReply:
        if request.check:
            reply = self._quarantine.check(request.subject, request.reason, request.by)
        else:
            reply = self._quarantine.clear(request.subject, request.reason, request.by)
        self._leave_no_more(request.subject)
        return reply

    def device_checked(self, message: DeviceChecked) -> None:
        self._quarantine.checked(message)
        self._leave_no_more(message.subject)

    def _leave_no_more(self, subject: str) -> None:
        """Drop the moves that still wait to leave a device or node, once it may be used again."""
        if subject not in self._job.quarantine:
            for place in [place for place in self._moving if subject in place]:
                self._planned_moves.drop(self._moving.pop(place))

    def lines(self) -> tuple[str, ...]:
        """Return, for `torchrelay status`, what is not known because a source is dead, and the newest verdicts."""
        dead = [
            f"{n}: {s}: {t}" for n, all_of_it in self._sources.items() for s, t in all_of_it.items() if t[:4] == "dead"
        ]
        return (*dead, *self._verdicts)

    def _see(self, seen: SeenEvidence, now_s: float) -> None:
        if seen.kind == k.NODE_CONDITION and not seen.value:
            self._quarantine.notice_over(seen)
            self._planned_moves.drop(self._moving.pop((seen.node, seen.subject), ""))
        verdict = self.judge.see(seen, now_s)
        if verdict is not None:
            self._carry_out(verdict, now_s)

    def _carry_out(self, v: DeviceVerdict, now_s: float) -> None:
        workers = self._concerned(v)
        ranks = sorted(w.rank for w in workers if self._job.is_holder(w) and w.alive and not w.finishing)
        if v.observe or v.action in (k.IGNORE, k.WATCH):
            self._tell(v, ranks, k.OBSERVED if v.observe else k.TOLD)
            return
        if v.action == k.STOP:
            self._tell(v, ranks, k.DONE)
            self._end_job(v.seen.code or EXIT_PROGRAM, f"the program's own fault: {v.reason}")
            return
        v = self._as_far_as_allowed(v)
        self._quarantine.put(v)
        if because := self._cannot(v, ranks, now_s):
            self._tell(v, ranks, k.REFUSED, because)
            return
        self._tell(v, ranks, k.DONE)
        for rank in ranks:
            if v.action == k.REPLACE:
                self._replace(rank, v, now_s)
            else:
                self._want(rank, v, now_s)
        if v.quarantine == k.NODE:
            for worker in self._job.rank_workers:
                if worker.node == v.seen.node and worker.alive and worker.rank not in ranks:
                    self._want(worker.rank, v, now_s)

    def _as_far_as_allowed(self, v: DeviceVerdict) -> DeviceVerdict:
        """Drop the quarantine of a node from a verdict, where that is not allowed.

        A person's word, or the cluster's, bars a node in any case.
        """
        if v.quarantine != k.NODE or v.seen.kind == k.NODE_CONDITION or v.seen.node in self._job.quarantine:
            return v
        if not (because := self.why_not_quarantined(v.seen.node)):
            return v
        reason = f"{v.reason}; {v.seen.node} is not put into quarantine: {because}"
        return dataclasses.replace(v, quarantine=k.NOBODY, reason=reason)

    def _want(self, rank: int, v: DeviceVerdict, now_s: float) -> None:
        if not self._planned_moves.is_wanted(rank):
            self._moving[v.seen.node, v.seen.subject or v.seen.device] = v.reason
            self._planned_moves.want(rank, v.reason, now_s, lasts=True, cause=MigrationCause.EVIDENCE)

    def _cannot(self, v: DeviceVerdict, ranks: list[int], now_s: float) -> str:
        """Return why nothing is done; empty if something is. Takes one from the moves that the job may have automatically.

        It takes one however many ranks the verdict is about: a machine that goes is one reason.
        """
        if not ranks:
            return "no rank uses it"
        if v.action == k.REPLACE and (because := self._job.unprotected_because()):
            return because
        if self._job.protection == "off":
            return self._job.protection_reason
        if v.action == k.REPLACE and len(ranks) == self._job.world_size:
            return "it is about all ranks, and nobody would be left to go on from"
        if all(map(self._planned_moves.is_wanted, ranks)):
            return ""  # as they do already, for what came first
        return self.judge.storm(now_s)

    def _concerned(self, v: DeviceVerdict) -> list[Worker]:
        seen = v.seen
        if seen.worker in self._job.workers:
            return [self._job.workers[seen.worker]]
        if seen.worker.startswith("rank "):
            return [w for w in self._job.rank_workers if w.rank == int(seen.worker[5:])]
        here = self._job.workers.on(seen.node)
        users = [w for w in here if seen.device in w.devices]
        everybody = not seen.device or (v.quarantine == k.NODE and not users)
        return here if everybody else users

    def _replace(self, rank: int, v: DeviceVerdict, now_s: float) -> None:
        worker = self._job.holder(rank)
        migration = self._driver.migration
        if migration is None or migration.state.kind == PLANNED or rank not in migration.state.lost:
            since_s = worker.lost_since_s(v.since_s)
            self._driver.lose(worker, v.reason, now_s, since_s=since_s, cause=MigrationCause.EVIDENCE)

    def _why_slow(self, worker: Worker, now_s: float) -> str:
        """Return why the rank is slow. The rule `straggler-host` of the policy goes by the word host-cpu in it."""
        on_device = [kind for device in worker.devices for kind in self._slowed_by(worker.node, device, now_s)]
        if on_device:
            return f"on its device: {', '.join(on_device)}"
        newest = self._newest(k.HOST_CPU, worker.node, worker.node)
        if newest is not None and newest.value >= SHORT_OF_CPU:
            return f"on its host: host-cpu: {newest.detail}"
        return "its device and its host show no cause: it is the program's share, or something that is not watched"

    def _slowed_by(self, node: str, device: str, now_s: float) -> list[str]:
        found = [
            kind
            for kind in EVENTS_THAT_SLOW
            if (newest := self._newest(kind, node, device)) is not None and now_s - newest.time_s <= CAUSE_S
        ]
        margin, width = (self._newest(kind, node, device) for kind in (k.TEMPERATURE_MARGIN, k.PCIE_WIDTH))
        found += [k.TEMPERATURE_MARGIN] if margin is not None and margin.value <= HOT_C else []
        return found + ([k.PCIE_WIDTH] if width is not None and width.value < FULL_WIDTH else [])

    def _newest(self, kind: str, node: str, subject: str) -> SeenEvidence | None:
        kept = self.judge.history.of(kind, node, subject)
        return kept[-1] if kept else None

    def _tell(self, v: DeviceVerdict, ranks: list[int], outcome: str, because: str = "") -> None:
        s = v.seen
        reason = f"{v.reason}; not done: {because}" if because else v.reason
        self._outbox.emit(
            HealthVerdict(v.action, v.rule, s.node, s.subject, tuple(ranks), outcome, v.quarantine, reason)
        )
        if v.action != k.IGNORE:
            who = f"rank {', '.join(map(str, ranks))}: " if ranks else ""
            would = "would " if outcome == k.OBSERVED else ""
            self._verdicts.append(f"{would}{v.action}: {who}{reason}")


def _asked(reason: str, by: str) -> str:
    return f"{reason}; asked for by {by}" if by else reason
