"""Every command that answers programs has its form among the schemas, and stands in the table of docs/cli.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer
from support.repository_script import script

from torchrelay.cli.app.program import app

ROOT = script("generated_part").ROOT
ROW = re.compile(
    r"^\| (?P<commands>`[^|]*`) \|.*\[(?P<name>[\w-]+)\]\(schemas/(?P=name)\.schema\.json\) \|$", re.MULTILINE
)


def commands(command: Any, path: str = "") -> Iterator[str]:
    """Yield those that take `--json`."""
    if any("--json" in option.opts for option in command.params):
        yield path.strip()
    for name, part in getattr(command, "commands", {}).items():
        yield from commands(part, f"{path} {name}")


def test_each_command_with_json_has_a_row_and_a_schema() -> None:
    rows = {row["name"]: row["commands"] for row in ROW.finditer((ROOT / "docs" / "cli.md").read_text("utf-8"))}
    told = {name for names in rows.values() for name in re.findall(r"`([a-z ]+)", names)}
    answering = set(commands(typer.main.get_command(app)))
    assert "drill" in answering
    assert answering <= {name.strip() for name in told}
    assert {f"{name}.schema.json" for name in rows} == set(script("generate_schemas").schemas())
