"""The wild score as a page: what came out for each program. Pure, but for reading and writing files.

What the page is made of is kept beside the manifest, so that a run of a few programs leaves the others' rows as they are.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wild.programs import Manifest, Program

START, END = "<!-- results start -->", "<!-- results end -->"
KEPT = Path(__file__).with_name("results.json")
OUTCOMES = ("identical", "otherwise", "refused", "false-promise", "wrong")
"""As a drill names them; faults that never struck are left out."""


def verdict(found: Mapping[str, Any]) -> str:
    """Return in one or two words what a program's runs without a fault have told."""
    drill = found.get("drill")
    if drill is None:
        return "not run"
    if not drill["deterministic"]:
        return "not deterministic"
    return "another run with torchrelay" if drill["with_torchrelay_undisturbed"] else "same without a fault"


def counts(found: Mapping[str, Any]) -> Counter[str]:
    """Return how many faults had which outcome."""
    drill = found.get("drill")
    return Counter({} if drill is None else {name: drill["outcomes"].get(name, 0) for name in OUTCOMES})


def _listed(outcomes: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in outcomes.items() if count)


def line(program: Program, found: Mapping[str, Any]) -> str:
    """Return one line for people who watch a run."""
    told = _listed(counts(found))
    return f"{program.name}: {verdict(found)}{': ' + told if told else ''} {found.get('problem', '')[-200:]}".strip()


def table(manifest: Manifest, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the page's table, with the sum of what was chosen before the mechanisms were done and what was added last."""
    rows = [
        "| program | without a fault | step cost | " + " | ".join(OUTCOMES) + " | latest run, where run again |",
        "|---|---|---:|" + "---:|" * len(OUTCOMES) + "---|",
    ]
    sums: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    latest: Counter[str] = Counter()
    for program in manifest.programs:
        found = results.get(program.name)
        if found is None:
            continue
        of_program = counts(found)
        sums[program.added_last] += of_program
        again = found.get("again")
        of_latest = counts(found if again is None else again)
        latest += of_latest
        cost = (found.get("drill") or {}).get("cost")
        ratio = "" if cost is None else f"{cost['step_ratio']:.2f}"
        name = f"{program.name} (added last)" if program.added_last else program.name
        cells = " | ".join(str(of_program[outcome] or "") for outcome in OUTCOMES)
        now = "" if again is None else _listed(of_latest) or verdict(again)
        rows.append(f"| {name} | {verdict(found)} | {ratio} | {cells} | {now} |")
    told = [_sum(text, sums[last]) for text, last in (("chosen first", False), ("added last, first run", True))]
    told.append(_sum("all of them, each by its latest run", latest))
    return "\n".join([*told, "", *rows])


def _sum(name: str, total: Counter[str]) -> str:
    every = sum(total.values())
    share = f"{100 * total['identical'] / every:.1f} %" if every else "none run"
    rest = ", ".join(f"{total[outcome]} {outcome}" for outcome in OUTCOMES[1:] if total[outcome])
    return f"- {name}: {total['identical']} of {every} cells identical ({share}){'; ' + rest if rest else ''}"


def reasons(manifest: Manifest, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return each refusal, false promise and wrong number with its reason."""
    told = []
    for program in manifest.programs:
        found = results.get(program.name, {})
        if found.get("problem"):
            told.append(f"- {program.name}: {' '.join(found['problem'].split())[-300:]}")
        drill = found.get("drill") or {}
        told += [f"- {program.name}: without a fault: {text}" for text in drill.get("with_torchrelay_undisturbed", ())]
        for fault in drill.get("faults", ()):
            if fault["outcome"] in OUTCOMES[1:]:
                told.append(
                    f"- {program.name}: {'; '.join(fault['faults'])}: {fault['outcome']}: {fault['reason'][:300]}"
                )
    return "\n".join(told)


_FOLDERS = re.compile(r"(?<![\w/.:])/(?:[^\s/:()'\"]+/)+")


def without_folders(text: str) -> str:
    """Return the text with the names of files alone: where they lay on the machine that ran the program says nothing."""
    return _FOLDERS.sub("", text)


def kept(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the page needs of a result."""
    drill = found.get("drill")
    result = {name: found[name] for name in ("commit", "problem") if found.get(name)}
    if drill is None:
        return result
    cost = drill.get("cost")
    result["drill"] = {
        "deterministic": drill["deterministic"],
        "with_torchrelay_undisturbed": drill.get("with_torchrelay_undisturbed", []),
        "outcomes": {name: count for name, count in drill["outcomes"].items() if count},
        "cost": None if cost is None else {"step_ratio": cost["step_ratio"]},
        "faults": [
            {"faults": fault["faults"], "outcome": fault["outcome"], "reason": without_folders(fault["reason"])}
            for fault in drill.get("faults", ())
            if fault["outcome"] in OUTCOMES[1:]
        ],
    }
    return result


def together(before: Mapping[str, Any], now: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the results of `now` with those of programs that were run before.

    The first result of a program stays; a later one stands beside it, as `again`. What could not be run replaces nothing.
    """
    results = dict(before)
    for name, found in now.items():
        fresh, first = kept(found), before.get(name, {})
        if "drill" not in first:
            results[name] = fresh if "drill" in fresh or name not in before else first
        elif "drill" in fresh and fresh != {key: value for key, value in first.items() if key != "again"}:
            results[name] = {**first, "again": fresh}
    return dict(sorted(results.items()))


def run_again(manifest: Manifest, results: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a line for each program that was run once more on a later commit."""
    told = []
    for program in manifest.programs:
        later = results.get(program.name, {}).get("again")
        if later is not None:
            why = "; ".join(
                f"{'; '.join(fault['faults'])}: {fault['reason'][:200]}" for fault in later["drill"]["faults"]
            )
            told.append(f"- on {later['commit']}: {line(program, later)}{f' ({why})' if why else ''}")
    return "\n".join(told) or "None."


def write(manifest: Manifest, now: Mapping[str, Mapping[str, Any]], page: Path, beside: Path = KEPT) -> None:
    """Put the results between the marks of the page, with those that are kept."""
    before = json.loads(beside.read_text()) if beside.exists() else {}
    results = together(before, now)
    beside.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    head, _, rest = page.read_text().partition(START)
    _, _, tail = rest.partition(END)
    commits = ", ".join(sorted({found["commit"] for found in results.values() if found.get("commit")}))
    content = (
        f"On commit {commits}.\n\n{table(manifest, results)}\n\n"
        f"## Run again, on a later commit\n\n{run_again(manifest, results)}\n\n"
        f"## Not identical\n\n{reasons(manifest, results)}"
    )
    page.write_text(f"{head}{START}\n{content}\n{END}{tail}")
