"""`torchrelay drill`, from its options to its files."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from torchrelay.cli.display import narrate
from torchrelay.cli.display.teller import make_console
from torchrelay.cli.display.waiting import waiting
from torchrelay.cli.drill import picture, practice, report, undisturbed
from torchrelay.cli.drill.advice import changes
from torchrelay.cli.drill.program import DrilledProgram
from torchrelay.cli.drill.result import Drill, as_json
from torchrelay.cli.drill.runs import DrillRun
from torchrelay.cli.drill.undisturbed import Undisturbed
from torchrelay.cli.folders import working_folder
from torchrelay.cli.relay_score import provenance
from torchrelay.cli.struck_runs.cells import Cell
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.machine.owned_folder import owned_folder

KEPT_FILES = ("events.jsonl", "stderr", "stdout")
"""Of a run that was not identical: what it takes to find out why."""
EXIT_FAILED = 1


@dataclass(frozen=True)
class DrillOptions:
    """The command line. `keep`: a folder for events and output of what was not identical; None: they are removed."""

    program: DrilledProgram
    command: tuple[str, ...]
    faults: int
    steps: int
    seed: int
    phases: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    together: int = practice.TOGETHER
    timeout_s: float = 600.0
    json_file: Path | None = None
    picture_file: Path | None = None
    keep: Path | None = None


def drill(options: DrillOptions) -> int:
    """Runs the drill, prints what it has found, and returns the exit code. Raises UserError."""
    signal.signal(signal.SIGTERM, _end)
    working_folder.check_size(options.program.folder)
    console = make_console(sys.stderr)
    with owned_folder("drill") as made:
        try:
            found = undisturbed.look(
                options.program, made, options.steps, options.timeout_s, lambda text: _tell(console, text)
            )
        except undisturbed.ScriptFails as e:
            _tell(console, str(e), "red")
            return EXIT_FAILED
        keep_other_run(found, options.keep)
        struck = _strike(options, found, made, console)
        gaps = changes(found.summary.coverage, made / undisturbed.RELAY_FOLDER / "work", options.program.folder)
    done = Drill(options.command, found, struck, gaps, provenance.versions(()))
    out = make_console(sys.stdout)
    for part in report.as_text(done):
        out.print(part)
    if options.json_file is not None:
        options.json_file.write_text(json.dumps(asdict(as_json(done)), indent=1) + "\n", encoding="utf-8")
    if options.picture_file is not None and struck:
        picture.draw(done, options.picture_file)
    return done.exit_code


def _end(number: int, _frame: object) -> None:
    """As Ctrl-C does: what is being run ends with this command."""
    raise SystemExit(128 + number)


def _tell(console: Console, text: str, style: str = "") -> None:
    console.print(narrate.line(text, style))


def _strike(options: DrillOptions, found: Undisturbed, folder: Path, console: Console) -> list[practice.StruckCell]:
    """Nothing where a comparison would tell nothing."""
    if not found.agreement.is_deterministic or found.differences:
        return []
    cells = practice.cells(options.program, found, options.faults, options.seed, options.kinds, options.phases)
    if not cells:
        raise UserError("there is no such phase for these kinds of faults: give other --kinds or --phases")
    results = []

    def keep(run: DrillRun, cell: Cell) -> None:
        if options.keep is not None:
            _keep(run, options.keep / f"{cell.kind}-{cell.phase}-rank{cell.rank}-step{cell.step}")

    with waiting(console, "faults", len(cells)) as are_done:
        for struck in practice.strike(options.program, found, cells, folder, options.together, keep):
            results.append(struck)
            text = f"{len(results)}/{len(cells)} {struck.cell.fault}: {struck.outcome.outcome}: {struck.outcome.reason}"
            _tell(console, text, report.STYLES[struck.outcome.outcome])
            are_done(len(results))
    return results


def keep_other_run(found: Undisturbed, keep: Path | None) -> None:
    """Keep what the run with torchrelay and no fault has said, where it was another one than torchrun's."""
    if keep is not None and found.relay is not None and found.differences:
        _keep(found.relay, keep / "no-fault")


def _keep(run: DrillRun, kept: Path) -> None:
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for name in KEPT_FILES:
        if (run.folder / name).exists():
            shutil.copy(run.folder / name, kept / name)
