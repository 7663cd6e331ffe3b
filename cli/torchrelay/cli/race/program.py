"""What is raced: the demo's GPT, or the user's own script. For each arm a script, and how many of its lines are its own."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from torchrelay.cli.folders import working_folder
from torchrelay.protocol.errors import UserError

EXAMPLES = Path(__file__).parents[4] / "examples"
BATCH = 6
EPOCHS = 2
NEVER = 1_000_000_000
CHECKPOINT = "checkpoint"
TORCHFT = "torchft"
NVRX = "nvrx"


@dataclass(frozen=True)
class RacedProgram:
    """`changed`: by kind of arm, the script that it needs; arms without theirs are not run. `is_demo`: arguments are known."""

    script: Path
    changed: Mapping[str, tuple[Path, ...]]
    """The script, and what it imports of the same changes."""
    arguments: tuple[str, ...] = ()
    steps: int = 0
    is_demo: bool = False

    def command(self, kind: str, out: Path, ranks: int, checkpoint_every: int = NEVER) -> list[str]:
        """Return the script for an arm of `kind` with its arguments, to follow a launcher's options.

        With an empty `kind` it is the unmodified script.
        """
        script = self.changed[kind][0] if kind else self.script
        if not self.is_demo:
            return [str(script), *self.arguments]
        sequences = self.steps // EPOCHS * BATCH * ranks
        return [
            str(script),
            *(f"--out={out}", f"--epochs={EPOCHS}", f"--sequences={sequences}", f"--batch={BATCH}"),
            f"--checkpoint-every={checkpoint_every}",
        ]

    def in_copy(self, folder: Path, to: Path) -> RacedProgram:
        """Return the same program in a copy: scripts that lie in `folder` are started where it was copied to."""

        def copied(path: Path) -> Path:
            return Path(working_folder.in_copy(str(path), folder, to))

        changed = {kind: tuple(map(copied, paths)) for kind, paths in self.changed.items()}
        return replace(self, script=copied(self.script), changed=changed)

    def why_not(self, kind: str) -> str:
        """Return why an arm of `kind` cannot run; empty if it has the script that it needs."""
        if not kind or kind in self.changed:
            return ""
        return f"needs a changed script: give --script-for {kind}=FILE"

    def lines_changed(self, kind: str) -> int:
        return sum(lines_added(self.script, path) for path in self.changed[kind]) if kind else 0


def lines_added(base: Path, other: Path) -> int:
    """Count the lines that `other` has and `base` has not, without empty ones. Lines that are moved count as new."""
    before, after = (
        [line.strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        for path in (base, other)
    )
    return sum(1 for line in difflib.ndiff(before, after) if line.startswith("+ "))


def demo(steps: int) -> RacedProgram:
    """Return the demo's GPT with `steps` steps. Raises UserError outside of a checkout."""
    script = EXAMPLES / "train_gpt.py"
    if not script.is_file():
        raise UserError("the demo is part of the source code, not of the installed package: give --script FILE")
    checkpoint = EXAMPLES / "race_checkpoint.py"
    changed = {
        CHECKPOINT: (checkpoint,),
        TORCHFT: (EXAMPLES / "race_torchft.py",),
        NVRX: (EXAMPLES / "race_nvrx.py", checkpoint),
    }
    return RacedProgram(script, changed, steps=steps // EPOCHS * EPOCHS, is_demo=True)


def own(script: Path, arguments: tuple[str, ...], scripts_for: list[str]) -> RacedProgram:
    """Return the user's program. `scripts_for`: KIND=FILE. Raises UserError for a file or kind that does not exist."""
    changed = {}
    for text in scripts_for:
        kind, equals, file = text.partition("=")
        if kind not in (CHECKPOINT, TORCHFT, NVRX) or not equals:
            raise UserError(f"--script-for {text}: one of {CHECKPOINT}, {TORCHFT}, {NVRX}, then = and a file")
        changed[kind] = (Path(file).absolute(),)
    for path in (script, *(paths[0] for paths in changed.values())):
        if not path.is_file():
            raise UserError(f"{path}: there is no such file")
    return RacedProgram(script.absolute(), changed, arguments)
