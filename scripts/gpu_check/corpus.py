"""Programs of the relay score on the device: sharded models, and whatever else the demo's script is not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping

from sections import Found, SectionError
from where import Where

ENTRIES = ("fsdp2-hsdp",)
KIND = "kill"
DEADLINE_S = 240.0


def cells(where: Where) -> Found:
    """Run a cell of each entry: twice undisturbed, and once with a rank that is killed. Raises SectionError."""
    out = where.out / "corpus"
    command = [sys.executable, "-m", "torchrelay.cli", "bench", "relay-score", "--backend", "nccl", "--out", str(out)]
    choice = [*(part for entry in ENTRIES for part in ("--entry", entry)), "--kind", KIND, "--cells", str(len(ENTRIES))]
    try:
        done = subprocess.run([*command, *choice], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise SectionError(f"the relay score was not done after {DEADLINE_S:.0f} s") from error
    try:
        results = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    except FileNotFoundError as error:
        raise SectionError(f"the relay score has no results: {done.stderr[-2000:]}") from error
    facts = {_name(result["cell"]): f"{result['outcome']}: {result['reason']}" for result in results}
    problems = [f"{_name(r['cell'])}: {r['outcome']}" for r in results if r["outcome"] != "identical"]
    if len(facts) < len(ENTRIES):
        problems.append(f"{len(facts)} of {len(ENTRIES)} cells have a result: {done.stderr[-2000:]}")
    return Found(facts, tuple(problems))


def _name(cell: Mapping[str, str]) -> str:
    return f"{cell['entry']}, {cell['kind']} in {cell['phase']}"
