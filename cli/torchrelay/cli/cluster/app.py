"""The commands of `kubectl torchrelay`. kubectl runs a program of the name kubectl-torchrelay that it finds on PATH."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from torchrelay.cli.app.manifest import FOR_THE_WEBHOOK, help_of_inject, inject
from torchrelay.cli.cluster import completion
from torchrelay.cli.command_line import arguments as a
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.kube.kube_names import SYSTEM_NAMESPACE
from torchrelay.protocol.names import DEFAULT_DASHBOARD_PORT

if TYPE_CHECKING:
    from torchrelay.cli.cluster.api import Cluster

app = typer.Typer(
    name="kubectl torchrelay",
    help="Looks after training jobs in a cluster: the questions of `torchrelay`, asked of Kubernetes.",
    pretty_exceptions_enable=False,
    no_args_is_help=True,
)
Job = Annotated[
    str, typer.Argument(metavar="JOB", help="A TrainingJob, as `status` names it.", autocompletion=completion.jobs)
]
AnyJob = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB", help="A TrainingJob, as `status` names it. Default: all.", autocompletion=completion.jobs
    ),
]
Namespace = Annotated[
    str, typer.Option("--namespace", "-n", metavar="NAME", help="Default: that of kubectl's context.")
]
Context = Annotated[str, typer.Option("--context", metavar="NAME", help="Of the kubeconfig. Default: the current one.")]
SystemNamespace = Annotated[
    str, typer.Option("--system-namespace", metavar="NAME", help="Where torchrelay itself is installed.")
]
Reason = Annotated[str, typer.Option("--reason", help="Why; kept in the resource.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="End as soon as it is asked for.")]
app.command(
    context_settings=FOR_THE_WEBHOOK,
    add_help_option=False,
    help=help_of_inject("kubectl torchrelay inject -f job.yaml"),
)(inject)


def _ask(
    ask: Callable[[Cluster], Awaitable[int]], namespace: str = "", context: str = "", everywhere: bool = False
) -> int:
    from torchrelay.cli.cluster.api import Cluster

    async def asked() -> int:
        async with Cluster(namespace, context, everywhere) as cluster:
            return await ask(cluster)

    return asyncio.run(asked())


@app.command()
def status(
    job: AnyJob = None,
    namespace: Namespace = "",
    context: Context = "",
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")] = False,
    as_json: a.AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again after each change.")] = False,
) -> int:
    """Show jobs: ranks, step, spares, and how far each is protected. Of one job, its ranks with their pods and nodes.

    Example: kubectl torchrelay status llama -n training --watch
    """
    from torchrelay.cli.cluster import commands

    return _ask(lambda c: commands.status(c, job, everywhere, as_json, watch), namespace, context, everywhere)


@app.command()
def migrate(
    job: Job,
    reason: Reason,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="The rank that moves to a spare.")] = None,
    pod: Annotated[str, typer.Option("--pod", help="All ranks of this pod move, one after the other.")] = "",
    no_wait: NoWait = False,
    namespace: Namespace = "",
    context: Context = "",
    as_json: a.AsJson = False,
) -> int:
    """Move a rank, or all ranks of a pod, to spares, without losing a step.

    Exit code: 0 done, 1 given up (the job goes on as before), 2 refused.

    Example: kubectl torchrelay migrate llama --rank 2 --reason "the fan is loud"
    """
    if (rank is None) == (not pod):
        raise UserError(f"say who moves: --rank or --pod\nhint: kubectl torchrelay status {job}")
    from torchrelay.cli.cluster import commands

    spec: dict[str, object] = {"reason": reason, **({"pod": pod} if pod else {"rank": rank})}
    return _ask(lambda c: commands.move(c, job, spec, wait=not no_wait, as_json=as_json), namespace, context)


@app.command()
def checkpoint(
    job: Job,
    reason: Reason = "kubectl torchrelay checkpoint",
    no_wait: NoWait = False,
    namespace: Namespace = "",
    context: Context = "",
    as_json: a.AsJson = False,
) -> int:
    """Save a checkpoint of a running job, at one of its next steps; the job goes on at once.

    Exit code: 0 saved, 1 nothing was saved (the job goes on as before), 2 refused.

    Example: kubectl torchrelay checkpoint llama --reason "before the maintenance"
    """
    from torchrelay.cli.cluster import commands

    spec: dict[str, object] = {"reason": reason, "save": True}
    return _ask(lambda c: commands.move(c, job, spec, wait=not no_wait, as_json=as_json), namespace, context)


@app.command()
def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node of the cluster.")],
    reason: Reason,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", metavar="SECONDS", min=0.0, help="How long to wait. Default: no limit.")
    ] = None,
    context: Context = "",
    as_json: a.AsJson = False,
) -> int:
    """Move all ranks of all jobs away from a node, without losing a step, and say when the node is free.

    The node stays in quarantine: `kubectl torchrelay quarantine clear NODE` gives it back.

    Exit code: 0 it is free, 1 ranks are still there.

    Example: kubectl torchrelay drain gpu-17 --reason "new switch in rack 7"
    """
    from torchrelay.cli.cluster import commands

    return _ask(lambda c: commands.drain(c, node, reason, timeout_s, as_json), context=context, everywhere=True)


@app.command()
def history(
    job: AnyJob = None,
    namespace: Namespace = "",
    context: Context = "",
    kept: Annotated[
        bool,
        typer.Option(
            "--kept",
            help="The jobs of all namespaces that the dashboard lists: those that train, and the newest 20 that are over and kept.",
        ),
    ] = False,
    system_namespace: SystemNamespace = SYSTEM_NAMESPACE,
    as_json: a.AsJson = False,
) -> int:
    """List the migrations of a job, or of all: how each ended, what it cost, and who asked for it.

    Migrations are resources, and go with their job, a day after its end. What the dashboard keeps on a volume
    (`dashboard.history.claim` of the chart) stays: `--kept` lists the newest of it, and the dashboard tells each job's
    story. Older jobs are files there.

    Example: kubectl torchrelay history llama
    """
    if kept:
        from torchrelay.cli.cluster.kept_jobs import show_kept

        return _ask(lambda c: show_kept(c, job, context, as_json), system_namespace, context)
    from torchrelay.cli.cluster import commands

    return _ask(lambda c: commands.history(c, job, as_json), namespace, context)


@app.command()
def explain(
    migration: Annotated[
        str | None,
        typer.Argument(
            metavar="MIGRATION",
            help="As `history` names it. Default: the latest.",
            autocompletion=completion.migrations,
        ),
    ] = None,
    namespace: Namespace = "",
    context: Context = "",
    as_json: a.AsJson = False,
) -> int:
    """Tell the story of a migration: who asked, what was decided and why, its phases, and what it cost.

    Example: kubectl torchrelay explain llama-3f9a1c
    """
    from torchrelay.cli.cluster import commands

    return _ask(lambda c: commands.explain(c, migration, as_json), namespace, context)


@app.command()
def top(
    job: AnyJob = None,
    namespace: Namespace = "",
    context: Context = "",
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")] = False,
) -> int:
    """Watch jobs on this terminal: ranks, steps, spares, protection, and the latest migrations. q ends it.

    Example: kubectl torchrelay top -A
    """
    from torchrelay.cli.cluster.top import top as watch

    return _ask(lambda c: watch(c, job, everywhere), namespace, context, everywhere)


@app.command()
def events(
    job: Job,
    namespace: Namespace = "",
    context: Context = "",
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    as_json: a.AsJson = False,
) -> int:
    """Tell what has happened to a job, as far as Kubernetes keeps its events: usually for an hour. `history` has all moves.

    Example: kubectl torchrelay events llama --follow
    """
    from torchrelay.cli.cluster.events import show_events

    return _ask(lambda c: show_events(c, job, follow, as_json), namespace, context)


@app.command()
def report(
    job: Job,
    namespace: Namespace = "",
    context: Context = "",
    checkpoint_every: a.CheckpointTime = "30m",
    restart: a.RestartTime = "5m",
    form: a.Form = "text",
    as_json: a.AsJson = False,
    picture: a.Picture = None,
) -> int:
    """Say what protection cost a job and what it saved, against a restart from a checkpoint for each loss.

    It knows what the job's resources say. Time that no controller has watched counts as neither useful nor lost.

    Example: kubectl torchrelay report llama --checkpoint-every 1h --restart 10m --format markdown
    """
    from torchrelay.cli.cluster import commands
    from torchrelay.cli.history.report import what_is_assumed, which_form

    assumed = what_is_assumed(checkpoint_every, restart)
    wanted = which_form(form, as_json)
    return _ask(lambda c: commands.report(c, job, assumed, wanted, picture), namespace, context)


@app.command()
def stop(job: Job, namespace: Namespace = "", context: Context = "", as_json: a.AsJson = False) -> int:
    """Say how a job is ended: what owns its pods would make them again, so that is to be deleted, by you.

    Exit code: 0 it has ended already, 2 it runs, and the command to type is named.

    Example: kubectl torchrelay stop llama
    """
    from torchrelay.cli.cluster import commands

    return _ask(lambda c: commands.stop(c, job, as_json), namespace, context)


@app.command()
def dashboard(
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="On this machine. 0: a free one.")
    ] = DEFAULT_DASHBOARD_PORT,
    system_namespace: SystemNamespace = SYSTEM_NAMESPACE,
    context: Context = "",
) -> int:
    """Show a page with all jobs of the cluster: goodput, protection, ranks, migrations, and what is left to do.

    It forwards a port of this machine's loopback device to the controller that leads, until Ctrl-C; if another one leads then,
    to that one. It needs the right to forward ports to pods of torchrelay's own namespace.

    Example: kubectl torchrelay dashboard
    """
    from torchrelay.cli.cluster.port_forward import show_dashboard

    return _ask(lambda c: show_dashboard(c, port, context), system_namespace, context)


quarantine = typer.Typer(name="quarantine", help="List, add and clear what is given no rank.", no_args_is_help=True)
app.add_typer(quarantine)


@quarantine.command("list")
def quarantine_list(context: Context = "", as_json: a.AsJson = False) -> int:
    """Show which nodes and devices are in quarantine, and why.

    Example: kubectl torchrelay quarantine list
    """
    from torchrelay.cli.cluster import commands

    return _ask(lambda c: commands.quarantine_list(c, as_json), context=context)


@quarantine.command("add")
def quarantine_add(
    node: Annotated[str, typer.Argument(metavar="NODE", help="A node of the cluster.")],
    reason: Reason,
    device: Annotated[str, typer.Option("--device", help="One device of it, as its driver names it.")] = "",
    context: Context = "",
    as_json: a.AsJson = False,
) -> int:
    """Give a node, or one device of it, no rank any more. Ranks that use it move to spares; `drain` waits for that.

    Example: kubectl torchrelay quarantine add gpu-17 --device GPU-5d0a --reason "XID 79"
    """
    from torchrelay.cli.cluster import commands

    return _ask(lambda c: commands.quarantine_add(c, node, device, reason, as_json), context=context)


@quarantine.command("clear")
def quarantine_clear(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="SUBJECT", help="Node, device, or name, as `list` has it.", autocompletion=completion.quarantines
        ),
    ],
    reason: Annotated[str, typer.Option("--reason", help="Why; it stands in the history.")] = "no reason given",
    context: Context = "",
    as_json: a.AsJson = False,
) -> int:
    """Take a node or a device out of quarantine.

    Example: kubectl torchrelay quarantine clear gpu-17 --reason "the fan is new"
    """
    from torchrelay.cli.cluster import commands

    return _ask(lambda c: commands.quarantine_clear(c, subject, reason, as_json), context=context)


spares = typer.Typer(name="spares", invoke_without_command=True)
app.add_typer(spares)


@spares.callback()
def spares_of_all(
    call: typer.Context, namespace: Namespace = "", context: Context = "", as_json: a.AsJson = False
) -> int:
    """Show the pools of spares, as `spares list` does. `spares add` makes one larger.

    Example: kubectl torchrelay spares -n training
    """
    if call.invoked_subcommand is None:
        return spares_list(None, namespace, context, as_json)
    if namespace or context or as_json:  # the command behind has its own, and would be about another place
        raise UserError(f"give options behind the command: kubectl torchrelay spares {call.invoked_subcommand} ...")
    return 0


@spares.command("list")
def spares_list(job: AnyJob = None, namespace: Namespace = "", context: Context = "", as_json: a.AsJson = False) -> int:
    """Show how many spares each job wants and has, and why there are not more.

    Example: kubectl torchrelay spares list llama
    """
    from torchrelay.cli.cluster import commands

    return _ask(lambda c: commands.spares(c, job, as_json), namespace, context)


@spares.command("add")
def spares_add(
    number: Annotated[int, typer.Argument(metavar="N", min=1, help="How many pods more.")],
    job: Job,
    namespace: Namespace = "",
    context: Context = "",
    as_json: a.AsJson = False,
) -> int:
    """Have more spares for a job from now on. Each is a pod that asks for as much as a worker.

    Example: kubectl torchrelay spares add 1 llama
    """
    from torchrelay.cli.cluster import commands

    return _ask(lambda c: commands.spares_add(c, number, job, as_json), namespace, context)
