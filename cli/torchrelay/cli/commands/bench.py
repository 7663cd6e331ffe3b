"""`torchrelay bench`: measurements that anyone can repeat."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from torchrelay.cli.relay_score.where import ScoreBackend

bench = typer.Typer(name="bench", help="Measure what torchrelay does to training.", no_args_is_help=True)

_Several = list[str] | None


@bench.callback()
def _bench() -> None:
    pass  # with one command alone, typer would leave its name away


@bench.command("relay-score")
def relay_score(
    entry: Annotated[_Several, typer.Option(metavar="NAME", help="Entry or group of the corpus.")] = None,
    phase: Annotated[
        _Several, typer.Option(help="Where it is struck: a phase of --inject, first, epoch, last.")
    ] = None,
    kind: Annotated[
        _Several,
        typer.Option(help="kill, planned, stop, joiner, second, partition, controller, respawn, refill or restart."),
    ] = None,
    rank: Annotated[_Several, typer.Option(help="A number, or first, middle, last.")] = None,
    backend: Annotated[
        ScoreBackend, typer.Option(help="gloo on the CPU, or nccl on CUDA devices.")
    ] = ScoreBackend.GLOO,
    seed: Annotated[int, typer.Option(help="Of the choice of cells and steps.")] = 0,
    cells: Annotated[int, typer.Option(min=0, help="How many cells, without --full.")] = 20,
    full: Annotated[bool, typer.Option("--full", help="All cells. Takes hours.")] = False,
    together: Annotated[int, typer.Option(min=1, help="Cells that one run may have, one after the other.")] = 1,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where results go.")] = Path("out/relay-score"),
    resume: Annotated[bool, typer.Option("--resume", help="Keep the results that are there.")] = False,
    corpus: Annotated[Path | None, typer.Option(metavar="DIR", help="Folder of the corpus.")] = None,
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="A page to put the results into.")] = None,
) -> int:
    """Strike training programs, and see whether they end bitwise as if nothing had been.

    Exit code: 0, or 1 if a run ended with wrong numbers.

    Example: torchrelay bench relay-score --entry nanogpt --kind kill
    """
    from torchrelay.cli.relay_score import command

    return command.relay_score(
        command.RelayScoreOptions(
            entries=tuple(entry or ()),
            phases=tuple(phase or ()),
            kinds=tuple(kind or ()),
            ranks=tuple(rank or ()),
            seed=seed,
            cells=cells,
            full=full,
            out=out.absolute(),
            resume=resume,
            corpus=corpus,
            page=page,
            together=together,
            backend=backend,
        )
    )


@bench.command("detect")
def detect(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where results go.")] = Path("out/detect"),
    script: Annotated[Path | None, typer.Option(help="A training script without an end.")] = None,
    device_days: Annotated[float, typer.Option(min=1, help="Of healthy noise, simulated.")] = 1000.0,
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 0,
) -> int:
    """Play faults into real jobs on a fake machine: what is detected, how rightly, how fast, and how many false alarms.

    Exit code: 0, or 1 if a target was missed.

    Example: torchrelay bench detect --device-days 100
    """
    from torchrelay.cli.detect import command

    return command.detect(command.DetectOptions(out.absolute(), script, device_days, seed))


@bench.command("spares")
def spares(
    gpus: Annotated[int, typer.Option(min=1, help="Of the job.")] = 1024,
    gpus_per_node: Annotated[int, typer.Option(min=1, help="Of each machine.")] = 8,
    days: Annotated[float, typer.Option(min=0.1, help="How long the job trains.")] = 30.0,
    hours_per_failure: Annotated[
        float, typer.Option(min=1, help="GPU-hours between two failures; as published of Llama 3 unless given.")
    ] = 50_677.0,
    repair_hours: Annotated[
        float, typer.Option(min=0.01, help="Until what was lost is of use again, on average.")
    ] = 24.0,
    together: Annotated[
        float, typer.Option(min=0, max=1, help="How often the loss of a node is that of a rack.")
    ] = 0.05,
    rack: Annotated[int, typer.Option(min=1, help="Nodes that are lost then.")] = 4,
    step_s: Annotated[float, typer.Option(min=0, help="Seconds of a step.")] = 10.0,
    migrate_s: Annotated[float, typer.Option(min=0, help="From a loss until training goes on with a spare.")] = 10.0,
    planned_s: Annotated[float, typer.Option(min=0, help="The pause of a planned move.")] = 5.0,
    restart_s: Annotated[float, typer.Option(min=0, help="Of all processes, from a checkpoint.")] = 600.0,
    checkpoint_s: Annotated[float, typer.Option(min=0.001, help="For which training stands to save.")] = 30.0,
    checkpoint_every_s: Annotated[
        float | None, typer.Option(min=1, help="Between checkpoints; the best interval unless given.")
    ] = None,
    group_gpus: Annotated[int, typer.Option(min=1, help="Of a replica group that is dropped.")] = 64,
    number: Annotated[
        list[int] | None, typer.Option("--spares", min=0, help="GPUs that stand by; may be given several times.")
    ] = None,
    traces: Annotated[int, typer.Option(min=1, help="How many are drawn and averaged.")] = 20,
    seed: Annotated[int, typer.Option(help="Of the traces.")] = 0,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="All figures as JSON.")] = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="Goodput by spares, as a picture.")] = None,
) -> int:
    """Say how many spares are worth their cost, by playing failures against ways to answer them. A simulation.

    Example: torchrelay bench spares --gpus 1024 --repair-hours 4 --picture spares.png
    """
    from torchrelay.cli.spare_plan import command
    from torchrelay.cli.spare_plan.trace import ClusterSite
    from torchrelay.cli.spare_plan.ways import WayCosts

    site = ClusterSite(gpus, gpus_per_node, hours_per_failure, together, rack, repair_hours)
    costs = WayCosts(
        step_s=step_s,
        migrate_s=migrate_s,
        planned_s=planned_s,
        restart_s=restart_s,
        checkpoint_s=checkpoint_s,
        checkpoint_every_s=checkpoint_every_s,
        group_gpus=group_gpus,
    )
    numbers = tuple(sorted(set(number or ())))
    return command.plan_spares(command.SparePlanOptions(site, costs, days, numbers, traces, seed, out, picture))


@bench.command("scaling")
def scaling(
    walk: Annotated[
        list[int] | None, typer.Option(min=2, help="Ranks of a walked migration; may be given several times.")
    ] = None,
    gate: Annotated[
        list[int] | None, typer.Option(min=2, help="Ranks of a walked gate; may be given several times.")
    ] = None,
    size: Annotated[
        list[int] | None, typer.Option(min=2, help="Of a job that is reckoned; may be given several times.")
    ] = None,
    state_gb: Annotated[float, typer.Option(min=0, help="Of one rank.")] = 10.0,
    transfer_gb_per_s: Annotated[float, typer.Option(min=0.001, help="To a spare.")] = 1.0,
    latency_us: Annotated[float, typer.Option(min=0, help="Of a small message between machines, one way.")] = 20.0,
    detect_s: Annotated[float, typer.Option(min=0, help="Until the loss is known.")] = 0.1,
    prepare_s: Annotated[float, typer.Option(min=0, help="The script's own set-up in the spare.")] = 30.0,
    step_s: Annotated[float, typer.Option(min=0, help="Of a step, which is done again.")] = 10.0,
    late_share: Annotated[
        float, typer.Option(min=0, max=0.5, help="Of a gate's messages, those whose packet is lost.")
    ] = 1e-6,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="All figures as JSON.")] = None,
    picture: Annotated[Path | None, typer.Option(metavar="FILE", help="The terms by size, as a picture.")] = None,
) -> int:
    """Say what a migration costs in a large job: measured where ranks can be played here, reckoned beyond.

    Example: torchrelay bench scaling --size 4096 --picture scaling.png
    """
    from torchrelay.cli.scaling.command import ScalingOptions, show_scaling
    from torchrelay.cli.scaling.model import Installation

    site = Installation(state_gb * 1e9, transfer_gb_per_s * 1e9, latency_us * 1e-6, detect_s, prepare_s, step_s)
    walks, gates, sizes = (
        tuple(sorted(set(given or usual)))
        for given, usual in ((walk, (2, 8, 64)), (gate, (2, 8, 64, 256)), (size, (64, 1_024, 16_384, 100_000)))
    )
    return show_scaling(ScalingOptions(site, walks, gates, sizes, late_share, out, picture))


@bench.command("race", context_settings={"allow_extra_args": True})
def race(
    context: typer.Context,
    quick: Annotated[bool, typer.Option("--quick", help="Few steps, one repetition, kills and planned moves.")] = False,
    steps: Annotated[int | None, typer.Option(min=20, help="Of the demo's GPT: 400, or 80 with --quick.")] = None,
    ranks: Annotated[int, typer.Option(min=2, help="That train.")] = 2,
    spares: Annotated[int, typer.Option(min=0, help="That torchrelay has standing by.")] = 1,
    faults: Annotated[
        int | None, typer.Option(min=0, help="How many strike each arm; one per 200 steps and at least 2.")
    ] = None,
    steps_per_fault: Annotated[
        int | None, typer.Option(min=1, help="Their rate, in place of their number: one for so many steps of the demo.")
    ] = None,
    kind: Annotated[_Several, typer.Option(help="kill, stop, node or planned.")] = None,
    seed: Annotated[int, typer.Option(help="Of the faults.")] = 0,
    repetitions: Annotated[int | None, typer.Option(min=1, help="3, or 1 with --quick.")] = None,
    arm: Annotated[
        _Several, typer.Option(help="baseline, checkpoint, torchrelay, torchft, torchft-tuned or nvrx.")
    ] = None,
    script: Annotated[
        Path | None, typer.Option(help="A script of your own; its arguments come last, after --.")
    ] = None,
    script_for: Annotated[
        _Several, typer.Option(metavar="KIND=FILE", help="Your script, changed for checkpoint, torchft or nvrx.")
    ] = None,
    workdir: Annotated[
        Path, typer.Option(metavar="DIR", help="What your script reads by relative paths; each run has a copy.")
    ] = Path(),
    limit: Annotated[float, typer.Option(min=1, help="Seconds that one run may take.")] = 600.0,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where results go.")] = Path("out/race"),
    page: Annotated[Path | None, typer.Option(metavar="FILE", help="A page to put the results into.")] = None,
) -> int:
    """Race the same training with the same faults: torchrelay, checkpoint and restart, torchft, NVRx.

    Other libraries are installed below --out. Exit code: 0, or 1 if torchrelay did not end with the baseline's weights.

    Example: torchrelay bench race --quick --arm baseline --arm torchrelay
    """
    from torchrelay.cli.race import command, options

    return command.race(
        options.of(
            quick=quick,
            steps=steps,
            ranks=ranks,
            spares=spares,
            faults=faults,
            steps_per_fault=steps_per_fault,
            kinds=tuple(kind or ()),
            seed=seed,
            repetitions=repetitions,
            arm_names=tuple(arm or ()),
            script=script,
            arguments=tuple(context.args),
            scripts_for=list(script_for or ()),
            limit_s=limit,
            out=out.absolute(),
            page=page,
            workdir=workdir.absolute(),
        )
    )
