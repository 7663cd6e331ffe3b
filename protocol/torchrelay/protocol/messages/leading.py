"""Which controller leads a job on several machines: asked by their commands, answered by the controller that they reach."""

from __future__ import annotations

from torchrelay.protocol.messages.message import message


@message(frozen=True)
class Member:
    """A machine of the job: its agent is `node`; a controller that its command starts listens at `address`, HOST:PORT.

    `imports`: a key for what the script imports there, empty if that is not known; `resume_command`: as in `Program`. The machine
    cannot tell them any more once it is lost.
    """

    node: str
    node_rank: int
    address: str
    imports: str = ""
    resume_command: str = ""


@message(frozen=True)
class MachinesCompared:
    """A machine that may come to the job, compared with those that are there, `nodes`.

    `refused`: why it could not take part; `told`: what may go well all the same.
    """

    nodes: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    told: tuple[str, ...] = ()


@message(frozen=True)
class LeadRequest:
    """The command of machine `node_rank`, whose agent is `node` (empty: it has none yet), asks who leads.

    `job`, `epoch`: the newest that it follows. `shares`: whether it sees in its folder of checkpoints what the leader has written.
    """

    node_rank: int
    node: str = ""
    job: str = ""
    epoch: int = 0
    shares: bool = False


@message(frozen=True)
class LeadReply:
    """What a controller says of its job.

    `epoch`: of this controller, whose machine is `node`; 0: leadership plays no role here.
    `job`: names the job among the jobs of the same secret. `begun`: all machines have been there. `quorum`: enough of the
    machines are with this controller for it to go on without the others, and the job is not over. `shared`: all members see
    the same folder of checkpoints. `place`: the name for the agent of a machine that is to join now; empty, with
    `refused`, if it cannot.
    """

    epoch: int
    job: str = ""
    node: str = ""
    members: tuple[Member, ...] = ()
    begun: bool = False
    quorum: bool = False
    shared: bool = False
    place: str = ""
    refused: str = ""
    nodes: tuple[str, ...] = ()
    """Every name that an agent of the job has had: none is used again."""
    holders: tuple[str, ...] = ()
    """Who has each rank; empty as long as some have none."""
    migrations_begun: int = 0
    restarts_done: int = 0
    scripts_begun: int = 0
    resume_dir: str = ""
    """With `restarts_done` and `scripts_begun` what its processes were started with: as in ControllerConfig."""
    lease_s: float = 0.0
    """A machine that hears of nobody who leads ends its processes after so long."""
    follows: int = 0
    """The newest epoch that enough machines are known to follow: whoever knows a newer one does not follow this controller."""
