"""Writes docs/reference from the command line, the chart's schema and the resource definitions.

`--check` only says whether it is up to date.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
import yaml
from generated_part import ROOT, write_or_check
from reference_of_names import environment_page, exit_codes_page

from torchrelay.cli.app.program import app
from torchrelay.cli.cluster.app import app as cluster_app

CHART, CRDS, PAGES = ROOT / "deploy" / "chart", ROOT / "deploy" / "crds", ROOT / "docs" / "reference"
CONDITIONS = "conditions"
"""They have the parts that conditions have everywhere in Kubernetes."""
_MADE = "<!-- Made by scripts/generate_reference.py: change {source} instead. -->"


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield each command that does something, with all the words that call it."""
    parts = getattr(command, "commands", {})
    if not parts or command.invoke_without_command:
        yield path, command
    for name, part in parts.items():
        yield from commands(part, f"{path} {name}")


def cli_page() -> str:
    """Return a section for each command: how it is called, what it does, and its options by subject."""
    lines = [
        "# Commands",
        "",
        _MADE.format(source="the options in cli/torchrelay/cli"),
        "",
        "All commands and options, as `--help` has them. [What they are for](../cli.md), with examples.",
    ]
    programs = ((app, "torchrelay"), (cluster_app, "kubectl torchrelay"))
    for path, command in (found for each, name in programs for found in commands(typer.main.get_command(each), name)):
        context = command.make_context(path, [], resilient_parsing=True)
        usage = " ".join(command.collect_usage_pieces(context))
        lines += ["", f"## {path}", "", "```", f"{path} {usage}", "```", "", *_paragraphs(command.help or "")]
        options = [p for p in command.params if p.opts[0].startswith("-") and not p.hidden]
        panels = dict.fromkeys(getattr(p, "rich_help_panel", None) or "" for p in options)
        for panel in panels:
            rows = [_option_row(p, context) for p in options if (getattr(p, "rich_help_panel", None) or "") == panel]
            lines += ["", f"| {panel or 'option'} | default | meaning |", "|---|---|---|", *rows]
    return "\n".join(lines) + "\n"


def _option_row(option: Any, context: typer.Context) -> str:
    written, text = option.get_help_record(context)
    meaning = text.partition("  [")[0] if "  [" in text else text
    default = option.get_default(context)
    shown = "" if default in (None, False, "", -1) or callable(default) else f"`{getattr(default, 'value', default)}`"
    variable = f" Or `{option.envvar}` in the environment." if option.envvar else ""
    return f"| `{_cell(written)}` | {shown} | {_cell(meaning)}{variable} |"


def _paragraphs(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def leaves(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each value of the chart that has no parts, with its schema."""
    for name, part in (schema.get("properties") or {}).items():
        if part.get("properties"):
            yield from leaves(part, f"{path}{name}.")
        else:
            yield path + name, part


def default_of(values: Any, path: str) -> str:
    for name in path.split("."):
        if not isinstance(values, dict) or name not in values:
            return ""
        values = values[name]
    return f"`{json.dumps(values)}`"


def helm_page() -> str:
    """Return a table of values for each part of the chart."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    lines = [
        "# Helm values",
        "",
        _MADE.format(source="deploy/chart/values.schema.json"),
        "",
        "What the chart can be told. Anything else is refused by Helm. [How to install](../kubernetes-install.md) it.",
    ]
    heading = ""
    for path, part in leaves(schema):
        first = path.partition(".")[0]
        first = first if "." in path else "general"
        if first != heading:
            heading = first
            lines += ["", f"## {heading}", "", "| value | default | meaning |", "|---|---|---|"]
        choices = f" One of {', '.join(f'`{c}`' for c in part['enum'])}." if "enum" in part else ""
        lines.append(f"| `{path}` | {default_of(values, path)} | {_cell(part['description'])}.{choices} |")
    return "\n".join(lines) + "\n"


def fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str, str]]:
    """Yield path, type and description of each field, from the outside in."""
    for name, part in (schema.get("properties") or {}).items():
        kind, inner, place = part.get("type", "any"), part, f"{path}.{name}"
        if kind == "array":
            inner = part["items"]
            kind, place = f"list of {inner.get('type', 'any')}s", f"{place}[]"
        text = part.get("description", "")
        choices = inner.get("enum")
        words = [text] if text else []
        if choices:
            words.append(f"One of {', '.join(f'`{c}`' for c in choices)}.")
        yield place, kind, " ".join(words)
        if name != CONDITIONS:
            yield from fields(inner, place)


def rules(schema: dict[str, Any], path: str) -> Iterator[tuple[str, str]]:
    """Yield where each rule holds, and what is said where it is broken."""
    for rule in schema.get("x-kubernetes-validations", ()):
        yield path, rule["message"]
    for name, part in (schema.get("properties") or {}).items():
        yield from rules(part, f"{path}.{name}" if path else name)


def resources_page() -> str:
    """Return a section for each kind of resource: its columns, and the fields of spec and status."""
    lines = [
        "# Resources",
        "",
        _MADE.format(source="deploy/crds"),
        "",
        "What torchrelay writes into a cluster, and what people may write. [What they are for](../kubernetes.md#resources).",
    ]
    for path in sorted(CRDS.glob("*.yaml")):
        spec = yaml.safe_load(path.read_text())["spec"]
        (version,) = spec["versions"]
        schema, names = version["schema"]["openAPIV3Schema"], spec["names"]
        where = "of a namespace" if spec["scope"] == "Namespaced" else "of the cluster"
        short = ", ".join(f"`{name}`" for name in names["shortNames"])
        columns = ", ".join(
            column["name"] + (" (`-o wide`)" if column.get("priority") else "")
            for column in version["additionalPrinterColumns"]
        )
        lines += [
            "",
            f"## {names['kind']}",
            "",
            f"{schema.get('description', '')} A resource {where}, `{spec['group']}/{version['name']}`, in short {short}.",
            "",
            f"`kubectl get` shows {columns}.",
        ]
        lines += ["", "An API server of 1.25 or later also refuses, with these words:", ""]
        lines += [f"- `{place}`: {message}" for place, message in rules(schema, "")]
        for part in ("spec", "status"):
            rows = list(fields(schema["properties"][part], part))
            if rows:
                lines += ["", f"| {part} of {names['kind']} | type | meaning |", "|---|---|---|"]
                lines += [f"| `{place}` | {kind} | {_cell(text)} |" for place, kind, text in rows]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def texts() -> dict[Path, str]:
    return {
        PAGES / "cli.md": cli_page(),
        PAGES / "environment.md": environment_page(),
        PAGES / "exit-codes.md": exit_codes_page(),
        PAGES / "helm.md": helm_page(),
        PAGES / "resources.md": resources_page(),
    }


if __name__ == "__main__":
    sys.exit(write_or_check(texts(), "generate_reference.py", __doc__))
