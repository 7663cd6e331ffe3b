"""Puts the pure decisions together into what a migration waits for: where to go, and how each rank gets there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from torchrelay.controller.checkpoints.checkpoint import JobCheckpoint, RankPart
from torchrelay.controller.decide.migration.donors import choose_donor, choose_helpers, is_replica
from torchrelay.controller.decide.migration.stand import (
    Cannot,
    JoinEntry,
    OutOfReach,
    decide_entry,
    decide_target,
    still_at_gate,
)
from torchrelay.controller.migration.events import GateToPass, TargetDecided, TargetImpossible
from torchrelay.controller.migration.state import State
from torchrelay.controller.picture.job import Job
from torchrelay.protocol.journals import collective_logs
from torchrelay.protocol.messages import Standing
from torchrelay.protocol.words.positions import JoinerAction, SurvivorAction
from torchrelay.protocol.words.rank_words import ranks_with_verb

Answer = TargetDecided | GateToPass | TargetImpossible


def planned_target(job: Job, state: State, new_token: Callable[[], str]) -> Answer:
    """Return the target of a planned move.

    All ranks stand at the head of the agreed boundary, and the leaver itself gives its tensors.
    """
    (rank,) = state.lost
    boundary = state.quiesce_boundary
    entry = decide_entry(rank, boundary, job.journal(rank).boundaries, ())
    if isinstance(entry, Cannot):
        return TargetImpossible(entry.reason)
    checks = job.checks
    replicas = [
        other
        for other in state.survivors
        if is_replica(checks.get(rank, ()), checks.get(other, ()), boundary, (rank, other))[0]
    ]
    helpers = choose_helpers(rank, replicas, state.standings, nodes=_nodes(job, state.holders))
    help_text = f"; {ranks_with_verb(helpers, 'helps, and holds', 'help, and hold')} the same" if helpers else ""
    return TargetDecided(
        boundary,
        f"all stand after step {boundary}; {state.lost[rank]} hands rank {rank} over by itself{help_text}",
        actions=dict.fromkeys(state.survivors, SurvivorAction.STAY.value),
        entries={rank: entry.action},
        donors={rank: rank},
        tokens={rank: new_token()},
        peer_hosts={rank: job.host_of(state.joiners[rank].worker)},
        helpers={rank: helpers},
    )


def resume_target(checkpoint: JobCheckpoint, folder: str) -> Answer:
    return TargetDecided(
        checkpoint.target,
        f"all ranks go on after step {checkpoint.target} from {folder}",
        actions={},
        entries={rank: part.action for rank, part in checkpoint.ranks.items()},
        donors={},
        tokens={},
        peer_hosts={},
        directory=folder,
        late={rank: part.late for rank, part in checkpoint.ranks.items()},
        left=checkpoint.left,
        donor_collectives={rank: part.donor_collectives for rank, part in checkpoint.ranks.items()},
    )


def target_where_they_stand(
    job: Job, state: State, new_token: Callable[[], str], jit_folder: Callable[[int], Path], *, all_save: bool
) -> Answer | OutOfReach:
    """Return the target after a loss. Survivors say where they stand, journals where the lost ranks were.

    Replica checks say which ranks can give tensors.
    `all_save`: a checkpoint is to have the tensors of each survivor, whichever ranks hold the same.
    """
    standings = {rank: state.standings[rank] for rank in state.survivors}
    target = decide_target(standings)
    if isinstance(target, Cannot):
        return TargetImpossible(target.reason)
    if behind := still_at_gate(standings, target.boundary):
        who = f"rank {behind[0]} makes" if len(behind) == 1 else f"ranks {', '.join(map(str, behind))} make"
        return GateToPass(tuple(behind), f"{who} the update of step {target.boundary}, as others have done")
    reasons = [target.reason]
    entries: dict[int, JoinEntry] = {}
    donors: dict[int, int] = {}
    helpers: dict[int, tuple[int, ...]] = {}
    carried: dict[int, tuple[str, ...]] = {}
    compared: dict[int, int] = {}
    lacking: dict[int, tuple[str, ...]] = {}
    nodes = _nodes(job, state.survivors)
    for rank in sorted(state.lost):
        journal = job.journal(rank)
        donor = choose_donor(
            rank,
            target.boundary,
            standings,
            job.checks,
            donors.values(),
            nodes,
            with_carried=not state.saves and len(job.nodes) == 1,
        )
        if isinstance(donor, Cannot):
            return TargetImpossible(donor.reason)
        entry = decide_entry(rank, target.boundary, journal.boundaries, journal.gates, standings[donor.rank])
        if isinstance(entry, OutOfReach):
            return entry
        if isinstance(entry, Cannot):
            return TargetImpossible(entry.reason)
        entries[rank] = entry
        donors[rank] = donor.rank
        helpers[rank] = donor.helpers
        carried[rank] = donor.carried
        compared[rank] = donor.compared
        lacking[rank] = donor.lacking
        reasons += [entry.reason, donor.reason]
    checkpoint = state.saves
    savers = state.survivors if all_save else _tensor_sources(job, state, target.boundary, donors).values()
    return TargetDecided(
        target.boundary,
        "; ".join(reasons),
        actions=target.actions,
        entries={rank: entry.action for rank, entry in entries.items()},
        donors=donors,
        tokens={rank: new_token() for rank in entries},
        peer_hosts={} if checkpoint else {r: job.host_of(j.worker) for r, j in state.joiners.items()},
        offline=target.offline,
        late={rank: dict(standings[donor].late) for rank, donor in donors.items()},
        donor_collectives={rank: _collectives(standings[donor], target.boundary) for rank, donor in donors.items()},
        helpers={} if checkpoint else helpers,
        left=target.left,
        savers=tuple(sorted(set(savers))) if checkpoint else (),
        directory=str(jit_folder(target.boundary)) if checkpoint else "",
        carried=carried,
        compared=compared,
        lacking=lacking,
    )


def _nodes(job: Job, ranks: Iterable[int]) -> dict[int, str]:
    return {rank: job.holder(rank).node for rank in ranks}


def _collectives(donor: Standing, target: int) -> int:
    """Return where a donor stands, as in messages.Plan."""
    return -1 if donor.boundary >= target else donor.log_length


def _tensor_sources(job: Job, state: State, target: int, donors: dict[int, int]) -> dict[int, int]:
    """Return, for each rank, the rank that saves its tensors: as few savers as cover all ranks."""
    sources = dict(donors)
    savers = sorted(set(donors.values()))
    for rank in state.survivors:
        checks = job.checks.get(rank, ())
        replicas = (s for s in savers if s == rank or is_replica(checks, job.checks.get(s, ()), target, (rank, s))[0])
        source = next(replicas, rank)
        if source not in savers:
            savers.append(source)
        sources[rank] = source
    return sources


def saved_job(job: Job, state: State, run_id: str, sizes: dict[int, int]) -> JobCheckpoint | Cannot:
    """Return what the manifest says about a just-in-time checkpoint whose parts are all there."""
    layouts = {rank: state.standings[rank].ddp_layout for rank in state.standings}
    standings = [s for _, s in sorted(state.standings.items()) if s.gates_passed == state.target]
    sources = _tensor_sources(job, state, state.target, state.donors) | {rank: rank for rank in state.savers}
    ranks = {}
    for rank in range(job.world_size):
        journal = job.journal(rank)
        source = state.standings[sources[rank]]
        entry = decide_entry(rank, state.target, journal.boundaries, journal.gates, source)
        if isinstance(entry, Cannot):
            return entry
        shadow = entry.action == JoinerAction.SHADOW
        at = state.target - 1 if shadow else state.target
        layout = layouts.get(rank) or layouts.get(state.donors.get(rank, -1), "")
        gate = journal.gates[at] if shadow else b""
        stands = _collectives(source, state.target)
        ranks[rank] = RankPart(
            rank, entry.action, journal.boundaries[at], gate, journal.set_up, layout, dict(source.late), stands
        )
    return JobCheckpoint(
        run_id,
        job.world_size,
        state.target,
        ranks,
        collective_logs.join(s.collective_log for s in standings),
        {rank: sizes.get(rank, 0) for rank in state.savers},
        sources,
        state.left,
    )
