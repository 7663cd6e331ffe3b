"""Strikes a job from outside, and sees that each fault really came."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from soak import draw as d
from support.footprint import parts_of
from support.machines import Fleet, lose
from support.network import Network

FIRED_S = 20.0
"""For a fault to be seen, on a busy machine."""
OBEYED_S = 8.0
"""For a rank to come to the place in its step."""
LOOK_S = 0.02
SHORT_CUT_S = 2.0
_SIGNALS = {d.KILL: signal.SIGKILL, d.CRASH: signal.SIGSEGV, d.STOP: signal.SIGSTOP, d.PAUSE: signal.SIGSTOP}
_ENDED = ("", "Z", "X")
LOST_DEVICE = "3,1,1,-;NVRM: Xid (PCI:0000:{:02x}:00): 79, pid=1, name=python, GPU has fallen off the bus.\n"
FIRST_DEVICE = 0x10


class NotStruckError(Exception):
    """The fault did not come, for this reason."""


class Hand:
    """`torchrelay(words)` runs a command beside the job. `refused` is told why a planned move was."""

    def __init__(
        self,
        fleet: Fleet,
        folder: Path,
        orders: Path,
        network: Network | None,
        torchrelay: Callable[..., subprocess.CompletedProcess[str]],
        refused: Callable[[str], None],
    ) -> None:
        self._fleet, self._orders, self._network = fleet, orders, network
        self._folder, self._torchrelay, self._refused = folder, torchrelay, refused
        self._jit, self._spoilt = folder / "jit", folder / "spoilt"
        self._whole = self._jit.readlink()
        self._spoilt.touch()
        self.cut: int | None = None
        """The machine that is cut off."""

    def strike(self, fault: d.Fault, ranks: dict[int, int]) -> None:
        """`ranks`: the process of each. Raises NotStruckError."""
        kind, target = fault.kind, fault.target
        if kind in d.OF_MACHINES:
            self._strike_machine(kind, target, fault.pause_s)
        elif kind in (d.HALF, d.ALL):
            chosen = sorted(ranks, key=lambda rank: (rank - target) % (max(ranks) + 1))
            several = chosen if kind == d.ALL else chosen[: max(len(chosen) // 2, 1)]
            _end([ranks[rank] for rank in several])
        elif kind == d.CONTROLLER:
            self._end_part("controller", range(len(self._fleet.commands)))
        elif kind == d.FOLDER:
            self._spoil_folder()
        elif kind == d.PLANNED:
            self._ask_for_move(target)
        elif kind == d.DEVICE:
            self._lose_device(target)
        elif target not in ranks:
            raise NotStruckError(f"nobody has rank {target} now")
        elif kind in d.ORDERED:
            self._order(target, ranks[target], fault.place, kind)
        else:
            self._signal(kind, ranks[target], fault.pause_s)

    def strike_spare(self, fault: d.Fault, pids: Sequence[int]) -> None:
        """Kills the first one of the processes, or stops it for good."""
        if not pids:
            raise NotStruckError("there is no spare now")
        if _is_short(fault.pause_s):
            _end(pids[:1])
        else:
            self._signal(d.STOP, pids[0], 0.0)

    def mend_folder(self) -> None:
        if self.folder_is_spoilt:
            self._lead_folder_to(self._whole)

    @property
    def folder_is_spoilt(self) -> bool:
        return self._jit.is_file()

    def mend_cut(self) -> None:
        if self.cut is not None and self._network is not None:
            self._network.join(self.cut)
            self.cut = None

    def _signal(self, kind: str, pid: int, pause_s: float) -> None:
        try:
            os.kill(pid, _SIGNALS[kind])
        except ProcessLookupError as e:
            raise NotStruckError(f"process {pid} has been replaced since") from e
        wanted = ("T", *_ENDED) if kind in (d.STOP, d.PAUSE) else _ENDED
        _await(f"{kind} of {pid}", lambda: state_of(pid) in wanted)
        if kind == d.PAUSE:
            time.sleep(pause_s / 2)  # this is the fault
            with suppress(ProcessLookupError):  # it was taken for a hang meanwhile
                os.kill(pid, signal.SIGCONT)

    def _order(self, rank: int, pid: int, place: str, kind: str) -> None:
        """The rank has obeyed once the order has another name."""
        order, partial = self._orders / str(rank), self._orders / f"{rank}-partial"
        done = self._orders / f"{rank}-done"
        done.unlink(missing_ok=True)
        partial.write_text(f"{pid} {place} {kind}")
        partial.rename(order)
        end_s = time.monotonic() + OBEYED_S
        while not done.exists() and time.monotonic() < end_s and state_of(pid) not in _ENDED:
            time.sleep(LOOK_S)
        order.unlink(missing_ok=True)
        if not done.exists():
            raise NotStruckError(f"process {pid} did not come to {place}")

    def _end_part(self, part: str, machines: Sequence[int]) -> None:
        for machine in machines:
            found = parts_of(self._fleet.commands[machine].pid).get(part)
            if found is not None:
                _end([found.pid])
                return
        raise NotStruckError(f"there is no {part} now")

    def _strike_machine(self, kind: str, machine: int, pause_s: float) -> None:
        if kind == d.AGENT:
            self._end_part("agent", (machine,))
        elif kind == d.NODE:
            lose(self._fleet.commands[machine])
            _await(f"the loss of machine {machine}", lambda: self._fleet.commands[machine].poll() is not None)
        elif self._network is not None:
            self._network.cut_off(machine)
            self.cut = machine
            if _is_short(pause_s):
                time.sleep(SHORT_CUT_S)  # this is the fault: it is over before anybody may be given up
                self.mend_cut()

    def _spoil_folder(self) -> None:
        """Nothing can be written to a folder that is a file."""
        if self.folder_is_spoilt:
            raise NotStruckError("it is spoilt already")
        self._lead_folder_to(self._spoilt)

    def _lead_folder_to(self, where: Path) -> None:
        link = self._jit.with_name("jit-next")
        link.symlink_to(where)
        link.replace(self._jit)

    def _ask_for_move(self, rank: int) -> None:
        asked = self._torchrelay("migrate", f"--rank={rank}", "--reason=soak", "--no-wait")
        if asked.returncode:
            why = (asked.stdout + asked.stderr).strip() or "no word"
            self._refused(why)
            raise NotStruckError(why)

    def _lose_device(self, number: int) -> None:
        logs = list((self._folder / "state").glob("*/machine/dev/kmsg"))
        if not logs:
            raise NotStruckError("there is no machine with devices")
        before = len(self._fleet.events(0, "health_verdict"))
        file = os.open(logs[0], os.O_RDWR | os.O_NONBLOCK)
        try:
            os.write(file, LOST_DEVICE.format(FIRST_DEVICE + number).encode())
        finally:
            os.close(file)
        _await(f"the loss of device {number}", lambda: len(self._fleet.events(0, "health_verdict")) > before)


def _is_short(pause_s: float) -> bool:
    """Half of the faults, as they were drawn."""
    return pause_s < sum(d.PAUSE_S) / 2


def state_of(pid: int) -> str:
    """One letter of the kernel's; empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _end(pids: Sequence[int]) -> None:
    struck = 0
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            struck += 1
    if not struck:
        raise NotStruckError(f"{list(pids)} have been replaced since")
    for pid in pids:
        _await(f"the end of {pid}", lambda pid=pid: state_of(pid) in _ENDED)  # type: ignore[misc]


def _await(what: str, came: Callable[[], bool]) -> None:
    """A fault that was made and does not show is the soak's own mistake."""
    end_s = time.monotonic() + FIRED_S
    while not came():
        assert time.monotonic() < end_s, f"{what} does not show"
        time.sleep(LOOK_S)
