"""The options of `torchrelay bench race`: what they are where they are not given, and what does not go together. Pure."""

from __future__ import annotations

from pathlib import Path

from torchrelay.cli.race import arms, program
from torchrelay.cli.race.command import RaceOptions
from torchrelay.cli.race.faults import RaceFaultKind
from torchrelay.protocol.errors import UserError

STEPS = 400
QUICK_STEPS = 80
REPETITIONS = 3
QUICK_REPETITIONS = 1
STEPS_PER_FAULT = 200
LEAST_FAULTS = 2
QUICK_BUDGET_S = 280.0
"""So that all is over within five minutes, whatever still has to be ended."""
QUICK_SAVE_COST_S = 0.1
QUICK_KINDS = (RaceFaultKind.KILL, RaceFaultKind.PLANNED)


def of(
    *,
    quick: bool,
    steps: int | None,
    ranks: int,
    spares: int,
    faults: int | None,
    steps_per_fault: int | None,
    kinds: tuple[str, ...],
    seed: int,
    repetitions: int | None,
    arm_names: tuple[str, ...],
    script: Path | None,
    arguments: tuple[str, ...],
    scripts_for: list[str],
    limit_s: float,
    out: Path,
    page: Path | None,
    workdir: Path,
) -> RaceOptions:
    """Make the options. Raises UserError for an unknown name, and for options that do not go together."""
    if script is None and (arguments or scripts_for):
        raise UserError("arguments and --script-for belong to --script")
    if script is not None and steps is not None:
        raise UserError("--steps is of the demo: your script does as many as it does")
    if script is not None and steps_per_fault is not None:
        raise UserError("--steps-per-fault is of the demo, whose steps are known: say --faults for your script")
    if faults is not None and steps_per_fault is not None:
        raise UserError("--faults says how many faults there are, --steps-per-fault how often: give one of them")
    wanted = steps or (QUICK_STEPS if quick else STEPS)
    raced = program.demo(wanted) if script is None else program.own(script, arguments, scripts_for)
    return RaceOptions(
        program=raced,
        ranks=ranks,
        spares=spares,
        faults=_faults(wanted, steps_per_fault) if faults is None else faults,
        kinds=_kinds(kinds, quick),
        seed=seed,
        repetitions=repetitions or (QUICK_REPETITIONS if quick else REPETITIONS),
        arms=_arms(arm_names),
        out=out,
        limit_s=limit_s,
        budget_s=QUICK_BUDGET_S if quick else None,
        save_cost_s=QUICK_SAVE_COST_S if quick else None,
        page=page,
        workdir=workdir,
    )


def _faults(steps: int, steps_per_fault: int | None) -> int:
    if steps_per_fault is None:
        return max(steps // STEPS_PER_FAULT, LEAST_FAULTS)
    return max(round(steps / steps_per_fault), 1)


def _kinds(given: tuple[str, ...], quick: bool) -> tuple[RaceFaultKind, ...]:
    unknown = [name for name in given if name not in [kind.value for kind in RaceFaultKind]]
    if unknown:
        raise UserError(f"--kind {unknown[0]}: one of {', '.join(kind.value for kind in RaceFaultKind)}")
    if given:
        return tuple(dict.fromkeys(RaceFaultKind(name) for name in given))
    return QUICK_KINDS if quick else (RaceFaultKind.KILL, RaceFaultKind.STOP, RaceFaultKind.PLANNED)


def _arms(given: tuple[str, ...]) -> tuple[str, ...]:
    names = [arm.name for arm in arms.ARMS]
    unknown = [name for name in given if name not in names]
    if unknown:
        raise UserError(f"--arm {unknown[0]}: one of {', '.join(names)}")
    return given
