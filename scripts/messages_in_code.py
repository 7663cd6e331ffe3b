"""Three parts of docs/messages.md, as the source has them: refusals, what commands answer, and what is told elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import texts_in_code as t
from generated_part import ROOT

REFUSALS = ("UserError", "NotRunningError", "ScriptFails", "CheckpointError")
ANSWERS = {"line": 0, "hint": 0, "print": 0, "_say": 0, "_tell": 1}
"""How commands speak -> which argument is the text."""
PREFIXES = {"hint": "hint: "}
WORDS = {"red": "error: ", "yellow": "warning: "}
"""What a line begins with by its style."""
AMONG_OTHERS = "cli/run"
"""What is said beside the lines of a script begins with `torchrelay:`."""
TITLES = {
    "cli/app": "Words in the wrong place",
    "cli/command_line": "Options of `torchrelay run` and `torchrelay check`",
    "cli/cluster": "`kubectl torchrelay`",
    "cli/commands": "`check`, `dashboard`, `doctor` and `plot`",
    "cli/controller_client": "Following a job",
    "cli/detect": "`bench detect`",
    "cli/drill": "`drill`",
    "cli/folders": "Folders, and which job is meant",
    "cli/history": "`history`, `explain` and `report`",
    "cli/jobs": "Commands about a running job",
    "cli/leading": "Who leads a job on several machines",
    "cli/machine.py": "The machine",
    "cli/preflight": "Checks before a run",
    "cli/race": "`bench race`",
    "cli/relay_score": "`bench relay-score`",
    "cli/run": "While a job runs",
    "cli/scaling": "`bench scaling`",
    "cli/spare_plan": "`bench spares`",
    "cli/struck_runs": "Faults to order",
    "dashboard/cluster": "The dashboard of a cluster",
    "dashboard/event_lines.py": "Files of events",
    "protocol/health": "The fault policy",
    "protocol/kube": "Annotations of pods",
    "protocol/logs": "Logs",
    "protocol/metrics": "Metrics",
    "protocol/notify": "Notifications",
    "protocol/options": "Faults and numbers as options have them",
    "protocol/security": "Certificates",
    "webhook/injection": "Preparing pods",
    "webhook/manifests": "Reading manifests",
    "webhook/offline.py": "`inject`",
    "webhook/settings.py": "Settings of the webhook",
    "cli/display": "What a summary says",
    "cli/restarting": "Beginning again",
    "controller/checkpoints": "Checkpoints that are not whole",
    "controller/config.py": "Settings of the controller",
    "controller/kube": "Settings of the controller of a cluster, and spares",
    "controller/health": "The fault policy's file",
    "agent": "Agents",
}
"""Folder or file below its part -> the heading of what it says."""
ROOTS = ("cli", "dashboard", "protocol", "webhook", "controller", "agent")
SAYS_IT_ELSEWHERE = (
    "cli/display",
    "cli/relay_score",
    "cli/race",
    "cli/scaling",
    "cli/spare_plan",
    "cli/detect",
    "cli/drill",
)
"""What runs say is above, and reports of measurements have pages of their own."""


class Place(NamedTuple):
    """Where others than the command say something: `calls` as in ANSWERS, in this folder or file below `root`."""

    root: str
    where: str
    calls: Mapping[str, int]
    begins: str = ""


ELSEWHERE = {
    "What a rank says among the lines of its script": (
        Place("shim", "", {"say": 0}, "torchrelay: warning: "),
        Place("protocol", "logs", {"say": 0}, "torchrelay: warning: "),
    ),
    "What stands in the way, in the protection report": (Place("shim", "", {"Gap": 2}),),
    "Notices to a webhook": (Place("protocol", "notify", {"JobNotice": 1}),),
    "Kubernetes: notes on a pod that is prepared": (Place("webhook", "injection", {"append": 0}),),
    "Kubernetes: events": (Place("controller", "kube/status", {"KubeEvent": 2}),),
    "Kubernetes: conditions": (Place("controller", "kube/status", {"ConditionState": 2}),),
}
_OF_NO_MODULE = "shim/site"
"""Whose import would let torchrelay into this process."""


def refusals() -> str:
    """Return the part about errors before anything starts, and those that end a command."""
    found = {title: list(_refused(files)) for title, files in _by_title().items()}
    return _page("Refusals", found)


def answers() -> str:
    """Return the part about what commands answer."""
    cli = {title: [f for f in files if _is_command(f)] for title, files in _by_title().items()}
    return _page("Answers", {title: list(_answered(files)) for title, files in cli.items()})


def elsewhere() -> str:
    """Return the part about ranks, reports, notices and Kubernetes."""
    found = {title: [text for place in places for text in _told(place)] for title, places in ELSEWHERE.items()}
    return _page("Elsewhere", found)


def _told(place: Place) -> Iterator[str]:
    for file in sorted((ROOT / place.root / "torchrelay" / place.root).rglob("*.py")):
        where = _where(file)
        if where.startswith(f"{place.root}/{place.where}".rstrip("/")) and any(t.made(t.read(file), place.calls)):
            source = t.read(file, "" if where.startswith(_OF_NO_MODULE) else _module(file))
            for variants in t.made(source, place.calls):
                yield from (begun(place.begins, text) for text in variants if _has_words(text))


def begun(begins: str, text: str) -> str:
    """Return a line as it is written. What says who speaks already is left as it is."""
    return text if text.startswith("torchrelay") else begins + text


def _is_command(file: Path) -> bool:
    where = _where(file)
    return where.startswith("cli/") and not where.startswith(SAYS_IT_ELSEWHERE)


def _refused(files: list[Path]) -> Iterator[str]:
    for file in files:
        for variants in t.raised(t.read(file, _module(file)), REFUSALS):
            yield from ("error: " + text for text in variants if text != t.UNKNOWN)


def _answered(files: list[Path]) -> Iterator[str]:
    for file in files:
        who = "torchrelay: " if _where(file).startswith(AMONG_OTHERS) else ""
        for call, variants, style in t.said(t.read(file, _module(file)), ANSWERS):
            begins = who + PREFIXES.get(call, WORDS.get(style, ""))
            yield from (begins + text.strip() for text in variants if _has_words(text))


def _has_words(text: str) -> bool:
    """Return whether the text says anything but values."""
    return any(word.islower() and len(word) > 2 for word in text.replace(":", " ").split())


def _page(heading: str, found: dict[str, list[str]]) -> str:
    lines = [f"## {heading}", ""]
    for title, texts in found.items():
        if texts:
            lines += [f"### {heading}: {title}", "", "```text", *dict.fromkeys(_once(texts)), "```", ""]
    return "\n".join(lines)


def _once(texts: list[str]) -> Iterator[str]:
    for text in texts:
        yield "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


def _by_title() -> dict[str, list[Path]]:
    """Group files by their headings. Raises KeyError for a file that says something and has no heading yet."""
    made: dict[str, list[Path]] = {}
    for root in ROOTS:
        for file in sorted((ROOT / root / "torchrelay" / root).rglob("*.py")):
            if "__" not in file.name and (title := _title(file)):
                made.setdefault(title, []).append(file)
    return made


def _title(file: Path) -> str:
    where = _where(file)
    for known, title in TITLES.items():
        if where == known or where.startswith(f"{known}/"):
            return title
    source = t.read(file)
    if any(True for _ in t.raised(source, REFUSALS)) or (
        _is_command(file) and any(True for _ in t.said(source, ANSWERS))
    ):
        raise KeyError(f"scripts/messages_in_code.py has no heading for what {where} says")
    return ""


def _where(file: Path) -> str:
    """Return the path below the file's part: `cli/jobs/stop.py`."""
    return "/".join(file.relative_to(ROOT).parts[2:])


def _module(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts[1:])
