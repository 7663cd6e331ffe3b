"""The ways to survive faults that are raced: how each is started, with which settings, and how it takes a notice. Pure."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchrelay.cli.race import peers, program
from torchrelay.cli.race.peers import Peer
from torchrelay.cli.race.program import RacedProgram

MANY_RESTARTS = 100
_NEW_STORE = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
"""A store for each attempt. In the one that torchrun 2.13 shares, restarted ranks find the addresses of those before them, and
wait for these in vain."""
SIGTERM_DIES = "SIGTERM: the process dies of it"
SIGTERM_SAVES = "SIGTERM: all ranks save at the end of the step, and the job is started anew"


@dataclass(frozen=True)
class ArmSetting:
    """What an arm runs in. `folder` is its own; `python` that of its environment. `port`: a free one."""

    program: RacedProgram
    ranks: int
    spares: int
    folder: Path
    python: str
    checkpoint_every: int
    port: int

    @property
    def out(self) -> Path:
        """Return where the demo's script writes."""
        return self.folder / "out"

    @property
    def cwd(self) -> Path:
        """Return the folder to run in: for a user's script a copy of the working folder, which it may read and write."""
        return self.folder if self.program.is_demo else self.folder / "work"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def events(self) -> Path:
        return self.folder / "events.jsonl"


@dataclass(frozen=True)
class Part:
    """One command. `record`: folder for the logs of its ranks. A service is ended when all others have ended."""

    name: str
    argv: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    record: Path | None = None


@dataclass(frozen=True)
class Arm:
    """One way to survive faults. `kind`: which changed script it needs, empty: none. `settings`: in words.

    `notice`: what a planned fault means to it.
    """

    name: str
    parts: Callable[[ArmSetting], list[Part]]
    settings: str
    kind: str = ""
    peer: Peer | None = None
    notice: str = SIGTERM_DIES
    moves_by_command: bool = False
    is_struck: bool = True

    def logs(self, setting: ArmSetting) -> list[Path]:
        """Return the file of each rank's steps, by rank. A part with a single rank calls it rank 0."""
        records = [part.record for part in self.parts(setting) if part.record is not None]
        if len(records) == setting.ranks > 1:
            return [record / "rank-0.jsonl" for record in records]
        return [records[0] / f"rank-{rank}.jsonl" for rank in range(setting.ranks)]

    def spares(self, setting: ArmSetting) -> int:
        return setting.spares if self.moves_by_command else 0


def _torchrun(setting: ArmSetting, ranks: int, restarts: int) -> tuple[str, ...]:
    options = ("--standalone", f"--nproc-per-node={ranks}", f"--max-restarts={restarts}")
    return (setting.python, "-m", "torch.distributed.run", *options)


def _baseline(setting: ArmSetting) -> list[Part]:
    command = setting.program.command("", setting.out, setting.ranks)
    return [Part("torchrun", (*_torchrun(setting, setting.ranks, 0), *command), record=setting.folder / "recorded")]


def _checkpoint(setting: ArmSetting) -> list[Part]:
    command = setting.program.command(program.CHECKPOINT, setting.out, setting.ranks, setting.checkpoint_every)
    launcher = _torchrun(setting, setting.ranks, MANY_RESTARTS)
    return [Part("torchrun", (*launcher, *command), _NEW_STORE, setting.folder / "recorded")]


def _torchrelay(setting: ArmSetting) -> list[Part]:
    options = (
        f"--nproc-per-node={setting.ranks}",
        f"--spares={setting.spares}",
        "--json",
        f"--events={setting.events}",
    )
    command = setting.program.command("", setting.out, setting.ranks)
    argv = (setting.python, "-m", "torchrelay.cli", "run", *options, *command)
    variables = {"TORCHRELAY_STATE_DIR": str(setting.state)}
    return [Part("torchrelay", argv, variables, record=setting.folder / "recorded")]


def _torchft(lighthouse: Sequence[str], variables: Mapping[str, str]) -> Callable[[ArmSetting], list[Part]]:
    def parts(setting: ArmSetting) -> list[Part]:
        service = str(Path(setting.python).with_name("torchft_lighthouse"))
        bind = f"--bind=127.0.0.1:{setting.port}"
        found = [Part("lighthouse", (service, bind, "--min_replicas=1", *lighthouse))]
        command = setting.program.command(program.TORCHFT, setting.out, setting.ranks)
        for group in range(setting.ranks):
            own = {
                "REPLICA_GROUP_ID": str(group),
                "NUM_REPLICA_GROUPS": str(setting.ranks),
                "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{setting.port}",
                **variables,
            }
            argv = (*_torchrun(setting, 1, MANY_RESTARTS), *command)
            found.append(Part(f"group-{group}", argv, own, setting.folder / "recorded" / str(group)))
        return found

    return parts


def _nvrx(options: Sequence[str]) -> Callable[[ArmSetting], list[Part]]:
    def parts(setting: ArmSetting) -> list[Part]:
        launcher = str(Path(setting.python).with_name("ft_launcher"))
        rendezvous = ("--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{setting.port}")
        shape = ("--nnodes=1", f"--nproc-per-node={setting.ranks}", f"--max-restarts={MANY_RESTARTS}")
        command = setting.program.command(program.NVRX, setting.out, setting.ranks, setting.checkpoint_every)
        argv = (launcher, *rendezvous, *shape, *options, *command)
        return [Part("ft_launcher", argv, record=setting.folder / "recorded")]

    return parts


_README = ("--quorum_tick_ms=100", "--join_timeout_ms=10000")
ARMS = (
    Arm("baseline", _baseline, "plain torchrun, no faults", is_struck=False),
    Arm(
        "checkpoint",
        _checkpoint,
        "torchrun --max-restarts; all ranks save asynchronously (torch.distributed.checkpoint) as often as Young's formula "
        "says; collectives give up after 30 s; a new store for each attempt, since restarts fail on gloo with the one that "
        "torchrun 2.13 shares",
        program.CHECKPOINT,
        notice=SIGTERM_SAVES,
    ),
    Arm(
        "torchrelay",
        _torchrelay,
        "as shipped",
        notice="torchrelay migrate: the rank moves",
        moves_by_command=True,
    ),
    Arm(
        "torchft",
        _torchft(_README, {}),
        "lighthouse and loop as in its README and its example: heartbeats count for 5 s, collectives give up after 5 s",
        program.TORCHFT,
        peers.TORCHFT,
    ),
    Arm(
        "torchft-tuned",
        _torchft(
            (*_README, "--heartbeat_timeout_ms=1000"),
            {"RACE_COLLECTIVE_TIMEOUT_S": "2", "RACE_MANAGER_TIMEOUT_S": "10"},
        ),
        "heartbeats count for 1 s, collectives give up after 2 s, the manager after 10 s",
        program.TORCHFT,
        peers.TORCHFT,
    ),
    Arm(
        "nvrx",
        _nvrx(
            (
                *("--ft-rank-heartbeat-timeout=5", "--ft-workload-check-interval=0.5"),
                *("--ft-initial-rank-heartbeat-timeout=60", "--ft-enable-nic-monitor=False"),
                *("--monitor-interval=0.1", "--workers-stop-timeout=2"),
            )
        ),
        "ft_launcher with the checkpoints of the arm checkpoint; a rank is ended after 5 s without a heartbeat, looked at "
        "every 0.5 s",
        program.NVRX,
        peers.NVRX,
        notice=SIGTERM_SAVES,
    ),
)


def chosen(names: Sequence[str]) -> list[Arm]:
    """Return the arms of these names, and the baseline, which all others are compared with; all arms if none is named."""
    return [arm for arm in ARMS if not names or arm.name in names or not arm.is_struck]


def own_python() -> str:
    return sys.executable
