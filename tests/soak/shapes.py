"""The jobs that are struck: on how many machines, and what is left to them when a rank is lost."""

from __future__ import annotations

from dataclasses import dataclass

from soak import draw as d

OFTEN = 100_000
RESPAWNS = 2
"""For each rank: after that all processes have to begin again."""
HANG_S = 20
LEASE = "--lease=20s"
"""The shortest that there is."""
_OF_A_RANK = (d.KILL, d.CRASH, d.STOP, d.PAUSE, d.SPIN, d.DEADLOCK, d.LONELY, d.PARTITION, d.HALF)


@dataclass(frozen=True)
class Mode:
    """`kinds`: what strikes, each as often as it is drawn; `machine_kinds`: also, on several machines, or on one in `alone`.

    `waits`: until the job says that it is protected. `how`: what the script does, as long_run.py takes it.
    """

    name: str
    how: str
    spares: int
    options: tuple[str, ...]
    kinds: tuple[str, ...]
    machine_kinds: tuple[str, ...]
    alone: tuple[str, ...]
    waits: bool


SPARES = Mode(
    "with spares",
    "ddp",
    1,
    (f"--respawn-limit={OFTEN}", f"--max-restarts={OFTEN}", "--refill"),
    (*_OF_A_RANK, d.KILL, d.PLANNED, d.PLANNED, d.SPARE, d.CONTROLLER),
    (d.NODE, d.AGENT, d.CUT),
    (d.DEVICE,),
    True,
)
LADDER = Mode(
    "without spares",
    "saves",
    0,
    (f"--respawn-limit={RESPAWNS}", f"--max-restarts={OFTEN}", f"--hang-timeout={HANG_S}s", "--no-refill"),
    (*_OF_A_RANK, d.KILL, d.RAISE, d.EXIT, d.ALL, d.CONTROLLER, d.FOLDER),
    (d.NODE, d.AGENT, d.CUT),
    (d.AGENT,),
    False,
)
MODES = {"spares": SPARES, "ladder": LADDER}


@dataclass(frozen=True)
class Shape:
    """`ranks`: of each machine. `cuts`: machines are cut off from one another, too."""

    machines: int
    ranks: int
    mode: Mode
    cuts: bool = False

    @property
    def name(self) -> str:
        return f"{'one machine' if self.machines == 1 else f'{self.machines} machines'}, {self.mode.name}"

    @property
    def world_size(self) -> int:
        return self.machines * self.ranks

    @property
    def options(self) -> tuple[str, ...]:
        return self.mode.options if self.machines == 1 else (*self.mode.options, LEASE)

    @property
    def kinds(self) -> tuple[str, ...]:
        if self.machines == 1:
            return (*self.mode.kinds, *self.mode.alone)
        return (*self.mode.kinds, *(k for k in self.mode.machine_kinds if k != d.CUT or self.cuts))


def shape(machines: int, mode: Mode, cuts: bool = False) -> Shape:
    """4 ranks on one machine. On two each has one rank: for the loss of either the other one has a spare, or room."""
    return Shape(machines, 4 if machines == 1 else 1, mode, cuts and machines > 1)
