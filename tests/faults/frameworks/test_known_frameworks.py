"""Frameworks as they come from the package index, struck where a shim that knows too little of them goes wrong without a word.

Each cell compares losses, weights, optimizer, generators, metrics and counters of all ranks with the undisturbed run.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.cells import few

RUN_S = 500.0
CELLS = {
    # The Trainer's running loss is a tensor that is added to in place: put back for survivors, journalled for the joiner.
    "running loss": ("transformers", "backward", "kill", "first"),
    # What a step adds to objects before the gate is in the gate's journal, not what the shadow step computes.
    "gate's attributes": ("transformers", "after-step", "kill", "last"),
    # The batch ahead, in the frame of accelerate's generator, was drawn under an earlier state of the generators.
    "look-ahead": ("transformers", "data", "kill", "last"),
    # The sampler's generator moves on from epoch to epoch, and accelerate broadcasts inside of its own generator.
    "own sampler": ("transformers-own-sampler", "epoch", "kill", "first"),
    # The others are one boundary ahead of the rank that saves.
    "one behind": ("transformers", "saving", "kill", "first"),
    "interrupted evaluation": ("transformers", "evaluation", "kill", "last"),
    # A validation between boundaries: the modules must train again afterwards.
    "training flags": ("lightning", "evaluation", "kill", "last"),
    # Metrics are modules that the first log has made.
    "born metrics": ("lightning", "backward", "kill", "first"),
    # A metric of the model's own is known to lightning by its address, which is another one in another process.
    "addresses": ("lightning-stream", "backward", "kill", "last"),
    "steps of one's own": ("lightning-manual", "after-step", "kill", "first"),
    "stop in a closure": ("lightning", "gate", "stop", "last"),
    # The loader says when an epoch ends, and the accumulation steps then.
    "end of the loader": ("accelerate", "after-step", "kill", "first"),
    "planned": ("accelerate", "epoch", "planned", "last"),
}
FIRST = ["interrupted evaluation", "addresses"]


@pytest.mark.slow
@pytest.mark.timeout(RUN_S + 20)
@pytest.mark.parametrize("name", few(len(FIRST), [*FIRST, *(name for name in CELLS if name not in FIRST)]))
def test_a_framework_goes_on_as_if_nothing_had_been(name: str, tmp_path: Path) -> None:
    entry, phase, kind, rank = CELLS[name]
    package = entry.partition("-")[0]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install 'torchrelay[corpus]'")
    options = [
        f"--entry={entry}",
        f"--phase={phase}",
        f"--kind={kind}",
        f"--rank={rank}",
        "--full",
        f"--out={tmp_path}",
    ]
    command = [sys.executable, "-m", "torchrelay.cli", "bench", "relay-score", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = json.loads((tmp_path / "relay-score.json").read_text())["results"]
    assert (result["outcome"], result["reason"]) == ("identical", result["reason"])
