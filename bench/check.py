"""Measures the ratios of ratios.py, and refuses those that are worse than their bounds (bounds.toml).

A measurement that is refused is made again, three times at most: what else runs on the machine can spoil one, but not a mended
step three times in a row. Each try is printed. Exit code 1 if a ratio is refused in all of them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import torch
from judging import Verdict, judge_all
from ratios import LONG, MEASUREMENTS, SHORT, Amount, Samples

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BOUNDS = Path(__file__).with_name("bounds.toml")
TRIES = 3
Measure = Callable[[Amount, Path], Samples]


def check(
    measurements: Mapping[str, Measure], bounds: Mapping[str, float], amount: Amount, tries: int
) -> tuple[Samples, list[Verdict]]:
    """Return the samples of each ratio's last try, and what was refused in all tries."""
    samples: Samples = {}
    refused: list[Verdict] = []
    pending: Collection[str] = list(measurements)
    for number in range(1, tries + 1):
        refused, again = [], []
        for name in pending:
            began_s = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                try:
                    found = measurements[name](amount, Path(folder))
                except SystemExit as e:  # a run that was measured has failed, and this says how
                    print(f"try {number}: REFUSED {name}: {e}", flush=True)
                    refused.append(Verdict(name, math.nan, 0.0, math.nan, False, "it could not be measured"))
                    again.append(name)
                    continue
            samples |= found
            verdicts = judge_all(found, bounds)
            for verdict in verdicts:
                print(f"try {number}: {'ok     ' if verdict.is_kept else 'REFUSED'} {verdict.name}: {verdict.reason}")
            print(
                f"try {number}: {name} took {time.monotonic() - began_s:.0f} s, load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
            refused += [verdict for verdict in verdicts if not verdict.is_kept]
            again += [] if all(verdict.is_kept for verdict in verdicts) else [name]
        if not again:
            break
        pending = again
    return samples, refused


def machine_name() -> str:
    """Return the processor's model and the number of processors, as the name of a file."""
    model = platform.processor() or platform.machine()
    with open("/proc/cpuinfo") as file:
        for line in file:
            if line.startswith("model name"):
                model = line.partition(":")[2]
                break
    return re.sub(r"[^a-z0-9]+", "-", f"{model} {os.cpu_count()}".lower()).strip("-")


def write_results(path: Path, samples: Samples, bounds: Mapping[str, float], began_load: float) -> None:
    """Write the ratios. Ratios that were not measured this time stay unchanged in the file."""
    measured_on = {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "load": [round(began_load, 1), round(os.getloadavg()[0], 1)],
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    ratios = json.loads(path.read_text())["ratios"] if path.exists() else {}
    for verdict in judge_all(samples, bounds):
        numbers = {"median": round(verdict.median, 4), "spread": round(verdict.spread, 4), "bound": verdict.bound}
        rounded = [round(sample, 4) for sample in samples[verdict.name]]
        ratios[verdict.name] = {**numbers, **measured_on, "samples": rounded}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": path.stem, "cores": os.cpu_count(), "ratios": ratios}, indent=1) + "\n")
    print(f"written: {path}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=MEASUREMENTS, action="append", help="these alone; may be repeated")
    parser.add_argument("--long", action="store_true", help="more samples, in some 10 minutes")
    parser.add_argument("--tries", type=int, choices=range(1, TRIES + 1), default=TRIES)
    parser.add_argument("--results", type=Path, help="folder for a JSON file that is named after the machine")
    given = parser.parse_args()
    began_load, bounds = os.getloadavg()[0], tomllib.loads(BOUNDS.read_text())["bounds"]
    measurements = {name: MEASUREMENTS[name] for name in given.only or MEASUREMENTS}
    samples, refused = check(measurements, bounds, LONG if given.long else SHORT, given.tries)
    if given.results is not None:
        write_results(given.results / f"{machine_name()}.json", samples, bounds, began_load)
    if refused:
        sys.exit("\n".join(f"refused in {given.tries} tries: {verdict.name}: {verdict.reason}" for verdict in refused))


if __name__ == "__main__":
    main()
