"""Runs an entry: undisturbed with torchrun, for the reference, and with a fault under `torchrelay run`."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from torchrelay.cli.command_line.given import MAX_RESTARTS
from torchrelay.cli.relay_score.compare import differences
from torchrelay.cli.relay_score.entries import CorpusEntry
from torchrelay.cli.relay_score.where import Where
from torchrelay.cli.struck_runs import process
from torchrelay.cli.struck_runs.cells import REFILL, RESPAWN, RESTART, RUNGS, Cell
from torchrelay.cli.struck_runs.classify import Ran
from torchrelay.cli.struck_runs.event_file import EventFile
from torchrelay.cli.struck_runs.hold import HoldFile, HoldForSpare
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.names import RESPAWN_LIMIT_DEFAULT

_SIGNALS = {"kill": "SIGKILL", "stop": "SIGSTOP"}
HELD_STEP_S = 0.1
"""A planned move stops a few tenths of a second ahead; with quick steps, a small program would be over by then, and also before it
is told to wait for a new spare."""
PATIENCE = 4
"""How many times its limit a reference may take: on a busy machine a program that is merely slow must not be left out."""
ABORTS = 3
_ABORTED = "terminate called without an active exception"
"""torch 2.13 now and then aborts a rank at the end of the interpreter, without us too: such a run says nothing of the program."""
AT_THE_END_S = 30.0
"""Or it hangs there, with all results written: who has done no more for so long after that has nothing more to do."""


class _HangsAtItsEnd(Exception):
    pass


class _EndWatch:
    """Raises where all ranks have written their results, and the run has not ended for AT_THE_END_S since."""

    def __init__(self, out: Path, ranks: int) -> None:
        self._results = [out / f"rank-{rank}.json" for rank in range(ranks)]
        self._since_s: float | None = None

    def __call__(self) -> None:
        if self._since_s is None:
            self._since_s = time.monotonic() if all(result.exists() for result in self._results) else None
        elif time.monotonic() - self._since_s > AT_THE_END_S:
            raise _HangsAtItsEnd


def environment(out: Path, where: Where, **more: str) -> dict[str, str]:
    """Return what the programs of the corpus read, and what makes two runs of them comparable."""
    return {
        "CORPUS_OUT": str(out),
        **where.variables(),
        "OMP_NUM_THREADS": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
        **more,
    }


def run_undisturbed(entry: CorpusEntry, corpus: Path, folder: Path, where: Where) -> Path:
    """Run an entry with plain torchrun. Return the folder with what its ranks wrote. Raises UserError if the run fails."""
    out = folder / "out"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={entry.ranks}"]
    for _ in range(ABORTS + 1):
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        variables = environment(out, where, **entry.variables(corpus))
        command = [*torchrun, *entry.command(corpus)]
        limit_s = PATIENCE * entry.timeout_s
        try:
            code = process.run(command, folder, variables, limit_s, _EndWatch(out, entry.ranks))
        except _HangsAtItsEnd:
            return out
        if code == 0 or _ABORTED not in (folder / "stderr").read_text(encoding="utf-8", errors="replace"):
            break
    if code != 0:
        how = f"no end within {PATIENCE * entry.timeout_s:g} s" if code is None else f"exit code {code}"
        raise UserError(f"{entry.name} does not run under torchrun: {how}\n{process.tail(folder / 'stderr')}")
    return out


def protected(entry: CorpusEntry, spare_count: int = 1) -> list[str]:
    """Return the command that an entry is run with, without the options of a single run."""
    command = [
        sys.executable,
        "-m",
        "torchrelay.cli",
        "run",
        f"--nproc-per-node={entry.ranks}",
        f"--spares={spare_count}",
    ]
    return [*command, f"--buddy-every={entry.buddy_every}", "--buddy-sync"] if entry.buddy_every else command


def ways_out(kind: str) -> list[str]:
    """Return options by which a loss is survived in the way that the cell asks about, and in no other."""
    respawns = RESPAWN_LIMIT_DEFAULT if kind == RESPAWN else 0
    restarts = MAX_RESTARTS if kind == RESTART else 0
    refill = "--refill" if kind == REFILL else "--no-refill"
    return [f"--max-restarts={restarts}", f"--respawn-limit={respawns}", refill]


def spares(cells: Sequence[Cell]) -> int:
    """Return how many spares a run begins with: one for each fault, unless it is to be survived without."""
    of_rungs = {RESPAWN: 0, REFILL: 1, RESTART: 0}
    return sum(of_rungs.get(cell.kind, len(cell.faults)) for cell in cells)


def run_struck(
    entry: CorpusEntry, cells: Sequence[Cell], corpus: Path, reference: Path, folder: Path, where: Where
) -> Ran:
    """Run one cell, or several that may share a run, in a new `folder`.

    Its path has to be short: unix sockets are made below it.
    """
    out = folder / "out"
    out.mkdir(parents=True)
    log = EventFile(folder / "events.jsonl")
    options = ["--events", str(log.path), "--jit-dir", str(folder / "jit")]
    rung = next((cell.kind for cell in cells if cell.kind in RUNGS), "")
    options += ways_out(rung)
    variables = {**entry.variables(corpus), "TORCHRELAY_STATE_DIR": str(folder / "state")}
    struck = folder / "struck"
    for cell in cells:
        if cell.in_place:
            variables["CORPUS_STRIKE"] = f"{cell.phase}:{cell.rank}:{_SIGNALS[cell.kind]}:{struck}"
        else:
            options += [f"--inject={fault}" for fault in cell.faults]
    hold: HoldFile | HoldForSpare | None = None
    if any(cell.kind == "planned" for cell in cells):
        hold = HoldFile(folder / "hold", log)
    elif rung == REFILL:
        hold = HoldForSpare(folder / "hold", log, sum(len(cell.faults) for cell in cells) - 1)
    if hold is not None:
        variables = {**variables, "CORPUS_HOLD": str(hold.path), "CORPUS_STEP_S": str(HELD_STEP_S)}
    code = process.run(
        [*protected(entry, spares(cells)), *options, *entry.command(corpus)],
        folder,
        environment(out, where, **variables),
        entry.timeout_s * (2 if rung else (1 + len(cells)) / 2),
        None if hold is None else hold.watch,
    )
    log.read()
    injected = {fault for cell in cells if not cell.in_place for fault in cell.faults}
    happened = injected <= set(log.summary.faults_injected) and (struck.exists() or bool(injected))
    different = tuple(differences(reference, out, entry.ranks))
    return Ran(code, log.summary, tuple(log.occurrences), different, happened, rung)
