"""All that a migration knows, as plain data: if it is written down, another controller can go on from there."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from torchrelay.controller.migration.events import RankLost, TargetDecided
from torchrelay.protocol.errors import FatalError
from torchrelay.protocol.messages import Standing
from torchrelay.protocol.words.phases import SAVE, UNPLANNED, Phase


@dataclass
class JoiningSpare:
    """A spare that has been given a rank which it does not hold yet."""

    worker: str
    prepared: bool = False
    store_host: str = ""
    store_port: int = 0


@dataclass
class State:
    """The state. `holders`: which worker holds each rank in the generation that is in force.

    `generation`: the newest that was ever used.
    `lost`: ranks that need another worker, with the one that holds or held them (empty on resume). Sets and dicts of ranks belong
    to the current round and are emptied when another loss starts a new one.
    """

    migration: str
    world_size: int
    generation: int
    holders: dict[int, str]
    kind: str = UNPLANNED
    phase: Phase = Phase.HEALTHY
    phase_since_s: float = 0.0
    deadline_s: float | None = None
    rank: int = -1
    reason: str = ""
    cause: str = ""
    """A `causes.MigrationCause`."""
    by: str = ""
    """The person or program that asked for it; empty where none did."""
    lost: dict[int, str] = field(default_factory=dict)
    fencing: set[str] = field(default_factory=set)
    journals: set[int] = field(default_factory=set)
    joiners: dict[int, JoiningSpare] = field(default_factory=dict)
    no_spare: str = ""
    awaiting_spare: set[int] = field(default_factory=set)
    survivors_told: bool = False
    """Survivors have heard of this generation, so giving up has to be told to them as well."""

    standings: dict[int, Standing] = field(default_factory=dict)
    quiesce_id: int = 0
    quiesce_boundary: int = -1
    quiesce_tries: int = 0
    quiesce_answers: dict[int, bool] = field(default_factory=dict)
    quiesce_agreed: bool = False

    target: int = -1
    left: str = ""
    actions: dict[int, str] = field(default_factory=dict)
    entries: dict[int, str] = field(default_factory=dict)
    donors: dict[int, int] = field(default_factory=dict)
    late: dict[int, dict[str, int]] = field(default_factory=dict)
    carried: dict[int, list[str]] = field(default_factory=dict)
    compared: dict[int, int] = field(default_factory=dict)
    lacking: dict[int, list[str]] = field(default_factory=dict)
    donor_collectives: dict[int, int] = field(default_factory=dict)
    helpers: dict[int, list[int]] = field(default_factory=dict)
    """For each lost rank: the ranks that give tensors beside its donor."""
    tokens: dict[int, str] = field(default_factory=dict)
    serve_hosts: dict[int, str] = field(default_factory=dict)
    savers: list[int] = field(default_factory=list)
    directory: str = ""
    offline: bool = False
    asked: bool = False
    """A question to the controller (where to go, the checkpoint's manifest) is open: it is put once."""
    unanswered_serves: dict[int, list[int]] = field(default_factory=dict)
    """For each donor: the lost ranks whose Serve it has not answered yet, in the order of asking."""
    serving: dict[int, list[Any]] = field(default_factory=dict)
    """For each lost rank: host and port of its donor's channel."""
    helping: dict[int, list[list[Any]]] = field(default_factory=dict)
    """For each lost rank: hosts and ports of the channels of those that give beside its donor."""
    transferred: set[int] = field(default_factory=set)
    rebuilt: set[int] = field(default_factory=set)
    verified: set[int] = field(default_factory=set)
    saved: set[int] = field(default_factory=set)
    unsaved: dict[int, str] = field(default_factory=dict)
    """Why a survivor could not write its part of the checkpoint."""
    departed: dict[int, str] = field(default_factory=dict)
    """Survivors that died while a checkpoint was saved which does not need them. A further round would need them."""
    resumed: set[int] = field(default_factory=set)
    stepped: set[int] = field(default_factory=set)
    finished: set[int] = field(default_factory=set)
    postponed: list[RankLost] = field(default_factory=list)
    """Losses after the point of no return of a planned migration. They are next."""

    moved: dict[int, str] = field(default_factory=dict)
    outcome: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    stopped_since_s: float | None = None
    steps_redone: int = 0
    transferred_bytes: int = 0
    rounds: int = 0

    @property
    def saves(self) -> bool:
        """Whether all ranks save what they hold, in place of going on elsewhere."""
        return bool(self.no_spare) or self.kind == SAVE

    @property
    def survivors(self) -> list[int]:
        return sorted(r for r in self.holders if r not in self.lost)

    @property
    def members(self) -> dict[int, str]:
        """Rank -> worker of the generation that is being made."""
        return {r: self.holders[r] for r in self.survivors} | {r: j.worker for r, j in sorted(self.joiners.items())}

    def member(self, rank: int) -> str:
        """Return the rank's worker in the generation that is being made; empty if it has none."""
        if rank in self.joiners:
            return self.joiners[rank].worker
        return "" if rank in self.lost else self.holders.get(rank, "")

    def has_survivors(self, of: Collection[int]) -> bool:
        """Return whether all survivors are in `of`. Cheap as long as some are missing: each rank's word asks it."""
        return len(of) >= len(self.holders) - len(self.lost) and set(of).issuperset(self.survivors)

    def has_members(self, of: Collection[int]) -> bool:
        """Return whether all members are in `of`, as `has_survivors`."""
        return len(of) >= len(self.holders) - len(self.lost) and set(of).issuperset(self.members)

    def begin(self, kind: str, reason: str, cause: str, *, rank: int = -1, by: str = "") -> None:
        """Be a migration of this kind. `cause`: a `causes.MigrationCause`. `rank`: the one that it replaces, or -1."""
        self.kind = kind
        self.reason = reason
        self.cause = cause
        self.rank = rank
        self.by = by

    def goes_to(self, event: TargetDecided) -> None:
        """Take in where the new generation starts, and how everybody gets there."""
        self.asked = False
        self.left = event.left
        self.target = event.target
        self.offline = event.offline
        self.directory = event.directory
        self.actions.update(event.actions)
        self.entries.update(event.entries)
        self.donors.update(event.donors)
        self.late.update(event.late)
        self.carried.update({rank: list(paths) for rank, paths in event.carried.items()})
        self.compared.update(event.compared)
        self.lacking.update({rank: list(paths) for rank, paths in event.lacking.items()})
        self.donor_collectives.update(event.donor_collectives)
        self.helpers.update({rank: list(helpers) for rank, helpers in event.helpers.items()})
        self.tokens.update(event.tokens)
        self.serve_hosts.update(event.peer_hosts)
        self.savers.extend(event.savers)

    def new_round(self) -> None:
        """Drop what was learned about the generation before, except which ranks are lost, fenced, finished or joining."""
        self.generation += 1
        self.rounds += 1
        self.target = -1
        self.left = ""
        self.offline = False
        self.directory = ""
        self.asked = False
        self.quiesce_boundary = -1
        self.quiesce_agreed = False
        self.no_spare = ""
        self.survivors_told = False
        for collected in (
            self.awaiting_spare,
            self.standings,
            self.quiesce_answers,
            self.actions,
            self.entries,
            self.donors,
            self.late,
            self.carried,
            self.compared,
            self.lacking,
            self.donor_collectives,
            self.helpers,
            self.tokens,
            self.serve_hosts,
            self.savers,
            self.unanswered_serves,
            self.serving,
            self.helping,
            self.transferred,
            self.rebuilt,
            self.verified,
            self.saved,
            self.unsaved,
            self.resumed,
            self.stepped,
        ):
            collected.clear()


_RANK_KEYS = {f.name for f in dataclasses.fields(State) if str(f.type).startswith("dict[int,")}
_SETS = {f.name for f in dataclasses.fields(State) if str(f.type).startswith("set[")}


def snapshot(state: State) -> str:
    """Return the state as JSON text."""

    def plain(value: Any) -> Any:
        if isinstance(value, set):
            return sorted(value)
        if isinstance(value, bytes):
            return {"base64": base64.b64encode(value).decode()}
        raise TypeError(f"{type(value).__name__} is no plain data")

    return json.dumps(dataclasses.asdict(state), default=plain, sort_keys=True)


def restore(text: str) -> State:
    """Return the state that `snapshot` wrote. Raises FatalError for anything else."""
    try:
        values = json.loads(text, object_hook=lambda d: base64.b64decode(d["base64"]) if set(d) == {"base64"} else d)
        for name in _RANK_KEYS:
            values[name] = {int(k): v for k, v in values[name].items()}
        for name in _SETS:
            values[name] = set(values[name])
        values["phase"] = Phase(values["phase"])
        values["joiners"] = {r: JoiningSpare(**j) for r, j in values["joiners"].items()}
        values["standings"] = {r: Standing(**s) for r, s in values["standings"].items()}
        values["postponed"] = [RankLost(**lost) for lost in values["postponed"]]
        return State(**values)
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise FatalError(f"not a migration's snapshot of this version: {type(e).__name__}: {e}") from e
