"""Two pages of docs/reference, from the constants of `protocol/names.py` and `kube_names.py` and what stands below each."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from generated_part import ROOT

from torchrelay.protocol import names
from torchrelay.protocol.kube import kube_names

HOMES = (ROOT / "protocol/torchrelay/protocol/names.py", ROOT / "protocol/torchrelay/protocol/kube/kube_names.py")
MADE = "<!-- Made by scripts/generate_reference.py: change {source} instead. -->"
BY_PEOPLE = {
    "For the commands": (names.ENV_SECRET, names.ENV_STATE_DIR, names.ENV_HISTORY_DIR, names.ENV_NOTIFY),
    "For the controller of a cluster (`controller.env` of the chart)": (
        kube_names.ENV_HEALTH_POLICY,
        kube_names.ENV_HEALTH_OBSERVE,
        kube_names.ENV_NODE_GRACE_S,
        names.ENV_LOG_LEVEL,
    ),
    "Told to your script": (names.ENV_CHECKPOINT, names.ENV_REHEARSAL, names.ENV_CHECK),
}
OTHERS = "Between the parts of torchrelay"
EXITS = {
    "EXIT_CHECK_": "`torchrelay check`",
    "EXIT_DRILL_": "`torchrelay drill`",
    "EXIT_": "`torchrelay run`, and all others",
}
USUAL = (
    "A command ends with 0 where it has done what it was asked for. `torchrelay run` ends with the exit code of the script where "
    "the script failed by itself, and with 128 and the signal's number where a signal ended the job, as `torchrun` does. A command "
    "about a running job ends with 1 where what it asked for did not come about. The others are:"
)


@dataclass(frozen=True)
class Constant:
    """`text`: what stands below it; empty if nothing does."""

    name: str
    value: str | int
    text: str


def constants(path: Path) -> Iterator[Constant]:
    """Yield the constants that are assigned in the file, in its order. Two in one line share the text below them."""
    body = ast.parse(path.read_text("utf-8")).body
    module = {**vars(names), **vars(kube_names)}
    for node, below in zip(body, [*body[1:], None]):
        if not isinstance(node, ast.Assign):
            continue
        said = below.value if isinstance(below, ast.Expr) else None
        text = said.value if isinstance(said, ast.Constant) and isinstance(said.value, str) else ""
        target = node.targets[0]
        for one in target.elts if isinstance(target, ast.Tuple) else [target]:
            if isinstance(one, ast.Name) and isinstance(module[one.id], str | int):
                yield Constant(one.id, module[one.id], " ".join(text.split()))


def environment_page() -> str:
    """Return a table of variables for each program or person that sets or reads them."""
    known = {str(c.value): c for path in HOMES for c in constants(path) if c.name.startswith("ENV_")}
    chosen = [name for of in BY_PEOPLE.values() for name in of]
    sections = {**BY_PEOPLE, OTHERS: tuple(sorted(set(known) - set(chosen)))}
    lines = [
        "# Environment variables",
        "",
        MADE.format(source="what stands below each in protocol/names.py and protocol/kube/kube_names.py"),
        "",
        "Options have their variables beside them in [commands](cli.md): those that torchrun reads, such as `PET_NNODES`.",
    ]
    for heading, listed in sections.items():
        lines += ["", f"## {heading}", ""]
        if heading == OTHERS:
            lines += ["torchrelay sets these by itself. They may change with each version.", ""]
        lines += ["| variable | meaning |", "|---|---|"]
        lines += [f"| `{name}` | {text} |" for name in listed if (text := _meaning(known[name], heading))]
        if silent := [f"`{name}`" for name in listed if not known[name].text]:
            lines += ["", f"And {', '.join(silent)}: what their names say."]
    return "\n".join(lines) + "\n"


def _meaning(variable: Constant, heading: str) -> str:
    """Return the variable's meaning. Raises ValueError if people set it and nothing is said of it."""
    if not variable.text and heading != OTHERS:
        raise ValueError(f"{variable.name} has to say below it what it is for")
    return variable.text.replace("|", "\\|").replace("ENV_STATE_DIR", f"`{names.ENV_STATE_DIR}`")


def exit_codes_page() -> str:
    """Return a table of exit codes for each command that has its own. Raises ValueError for a code without an explanation."""
    found = [c for c in constants(HOMES[0]) if c.name.startswith("EXIT_")]
    lines = ["# Exit codes", "", MADE.format(source="what stands below each in protocol/names.py"), "", USUAL]
    told: set[str] = set()
    tables = []
    for prefix, heading in EXITS.items():
        rows = [c for c in found if c.name.startswith(prefix) and c.name not in told]
        told |= {c.name for c in rows}
        silent = [c.name for c in rows if not c.text]
        if silent:
            raise ValueError(f"{', '.join(silent)}: say below it what it means")
        tables.append(["", f"## {heading}", "", "| exit code | meaning |", "|---|---|"])
        tables[-1] += [f"| {c.value} | {c.text} |" for c in sorted(rows, key=lambda c: int(c.value))]
    for table in reversed(tables):
        lines += table
    return "\n".join(lines) + "\n"
