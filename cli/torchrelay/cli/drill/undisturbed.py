"""What the script does without faults: does it do the same twice with torchrun, and the same with torchrelay?"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torchrelay.cli.display.summary import RunSummary
from torchrelay.cli.drill import records
from torchrelay.cli.drill.program import DrilledProgram
from torchrelay.cli.drill.runs import DrillRun, Reference, run_plain, run_relay
from torchrelay.protocol.errors import UserError

LEAST_LIMIT_S = 120.0
PATIENCE = 4.0
"""How many times as long as an undisturbed run another one may take."""
PER_FAULT_S = 60.0
ENTROPY = "1"
"""What the chance of a script that seeds nothing is made of."""
OTHER_MEMORY = {"MALLOC_PERTURB_": "165"}
"""The C library of GNU fills memory that it gives out with a byte made of this."""
RELAY_FOLDER = "relay"
"""Below the folder of a drill: the run with torchrelay and without a fault."""


class ScriptFails(UserError):
    """The script does not run without torchrelay, or nothing of it can be compared."""


@dataclass(frozen=True)
class Undisturbed:
    """What runs without faults have shown.

    `agreement`: of two runs with torchrun, or with torchrelay if the script seeds nothing.
    `relay`: the run with torchrelay; None if the script is not deterministic.
    `differences`: of that run from torchrun's. `steps`: optimizer steps of a rank; `boundaries`: as torchrelay counts them.
    `reads_unwritten`: the results depend on what was in memory before the script wrote there; `agreement` is then that of two
    runs with torchrun, one of which had other memory.
    """

    agreement: records.RunComparison
    reference: Reference
    plain: DrillRun
    relay: DrillRun | None = None
    differences: tuple[str, ...] = ()
    reads_unwritten: bool = False

    @property
    def steps(self) -> int:
        return max((len(r.lines) for r in self.reference.records), default=0)

    @property
    def summary(self) -> RunSummary:
        return self.relay.log.summary if self.relay is not None and self.relay.log is not None else RunSummary()

    @property
    def boundaries(self) -> int:
        return self.summary.boundary

    @property
    def ended_early(self) -> bool:
        return any(r.stopped for r in self.reference.records)

    @property
    def cost(self) -> Cost | None:
        """Return the cost; None if too few steps were made to tell."""
        if self.relay is None:
            return None
        plain = _median_step_s(self.plain)
        relay = _median_step_s(self.relay)
        if plain <= 0 or relay <= 0:
            return None
        return Cost(plain, relay, _memory_bytes(self.plain), _memory_bytes(self.relay))

    def limit_s(self, faults: int) -> float:
        """Return how long a run with so many faults may take."""
        walls = [run.wall_s for run in (self.plain, self.relay) if run is not None]
        return max(PATIENCE * max(walls), LEAST_LIMIT_S) + PER_FAULT_S * faults


@dataclass(frozen=True)
class Cost:
    """Costs of the slowest rank: median seconds of a step with torchrun and with torchrelay; most memory of a rank, in bytes."""

    plain_step_s: float
    relay_step_s: float
    plain_memory_bytes: int
    relay_memory_bytes: int

    @property
    def ratio(self) -> float:
        return self.relay_step_s / self.plain_step_s


def look(
    program: DrilledProgram, folder: Path, steps: int, timeout_s: float, tell: Callable[[str], None] = lambda _: None
) -> Undisturbed:
    """Make three runs, each in a new folder below `folder`; four if the script seeds nothing or torchrelay's run differs.

    Raises ScriptFails.
    """
    tell("with torchrun")
    first = _plain(program, folder / "p1", steps, timeout_s)
    tell("with torchrun, once more")
    agreement = records.agreement(first.records, _plain(program, folder / "p2", steps, timeout_s).records)
    limit_s = max(PATIENCE * first.wall_s, LEAST_LIMIT_S)
    reference = Reference(first.records, agreement.judged)
    if not agreement.is_deterministic:
        return _by_chance(program, folder, steps, limit_s, Undisturbed(agreement, reference, first), tell)
    tell("with torchrelay, no fault")
    relay = run_relay(program, folder / RELAY_FOLDER, reference, (), 1, limit_s)
    found = [*relay.diverged, *_other_end(relay, limit_s)]
    found += records.differences(reference.records, relay.records, reference.judged) if relay.exit_code == 0 else []
    if found:
        tell(
            "torchrelay's differs; once more with torchrun and other memory, in case the script reads what it has not written"
        )
        perturbed = replace(program, variables={**program.variables, **OTHER_MEMORY})
        other = records.agreement(first.records, _plain(perturbed, folder / "p3", steps, timeout_s).records)
        if not other.is_deterministic:
            return Undisturbed(other, reference, first, reads_unwritten=True)
    return Undisturbed(agreement, reference, first, relay, tuple(found))


def _by_chance(
    program: DrilledProgram, folder: Path, steps: int, limit_s: float, plain: Undisturbed, tell: Callable[[str], None]
) -> Undisturbed:
    """Compare two runs with torchrelay and chosen seeds: torchrelay seeds what the script leaves unseeded."""
    tell("the two runs differ; twice with torchrelay and chosen chance, in case the script seeds nothing")
    chosen = Reference((), (), ENTROPY)
    relay = run_relay(program, folder / RELAY_FOLDER, chosen, (), 1, limit_s, steps)
    if other_end := _other_end(relay, limit_s):
        return replace(plain, relay=relay, differences=other_end)
    again = run_relay(program, folder / "again", chosen, (), 1, limit_s, steps)
    agreement = records.agreement(relay.records, again.records)
    if not agreement.is_deterministic:
        return plain
    return Undisturbed(agreement, Reference(relay.records, agreement.judged, ENTROPY), plain.plain, relay)


def _other_end(relay: DrillRun, limit_s: float) -> tuple[str, ...]:
    if relay.exit_code == 0 or relay.diverged:
        return ()
    how = f"no end within {limit_s:.0f} s" if relay.exit_code is None else f"exit code {relay.exit_code}"
    return (f"{how}, where torchrun's is 0",)


def _plain(program: DrilledProgram, folder: Path, steps: int, timeout_s: float) -> DrillRun:
    run = run_plain(program, folder, steps, timeout_s)
    if run.exit_code != 0:
        how = f"no end within {timeout_s:.0f} s" if run.exit_code is None else f"exit code {run.exit_code}"
        raise ScriptFails(f"{program.name} does not run with torchrun: {how}\n{run.output}")
    for rank, record in enumerate(run.records):
        if record.unrecorded:
            raise ScriptFails(f"what {program.name} computes cannot be recorded: rank {rank}: {record.unrecorded}")
        if not record.lines:
            raise ScriptFails(
                f"rank {rank} of {program.name} made no step with an optimizer of torch: nothing could be compared"
            )
    return run


def _median_step_s(run: DrillRun) -> float:
    return max((statistics.median(s) for r in run.records if (s := records.step_seconds(r))), default=0.0)


def _memory_bytes(run: DrillRun) -> int:
    return max((r.memory_bytes for r in run.records), default=0)
