"""Runs the programs of the wild corpus: `make wild SOURCES=folder`, or this file with the same words as options.

Each program is laid out, given tiny data, checked, and drilled: twice with torchrun, once with torchrelay and no fault, then
with faults. What came out is kept, one JSON file a program, so that a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "gpu_check"))

import where as one_gpu
from wild import environments, programs, report, sources
from wild.programs import Manifest, Program

PAGE = environments.PROJECT / "docs" / "wild-score.md"
VARIABLES = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}
"""One thread for each rank; nothing is downloaded."""


@dataclass(frozen=True)
class Setting:
    """`folder`: where environments, laid out programs and results are. `sources`: where the repositories are.

    `kinds`, `phases`: only these faults, as the options of the drill take them; empty: all.
    `on_gpu`: with this Python, its packages and the one GPU that is there, which all ranks share.
    """

    folder: Path
    sources: Path
    faults: int
    seed: int
    timeout_s: float
    kinds: str = ""
    phases: str = ""
    on_gpu: bool = False


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="programs; all unless given")
    parser.add_argument("--sources", type=Path, required=True, help="a folder with copies of the repositories")
    parser.add_argument("--folder", type=Path, default=environments.PROJECT / ".wild", help="where results are kept")
    parser.add_argument("--faults", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout-s", type=float, default=300.0)
    parser.add_argument("--kinds", default="", help="only these faults, as in kill,planned")
    parser.add_argument("--phases", default="", help="only in these phases of a step, as in backward,after-step,head")
    parser.add_argument("--again", action="store_true", help="run programs anew that have a result")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: this Python, and one GPU")
    parser.add_argument("--at-once", type=int, default=1, help="programs beside each other")
    given = parser.parse_args(arguments)
    on_gpu = given.device == "cuda"
    setting = Setting(
        given.folder.absolute(), given.sources.absolute(), given.faults, given.seed, given.timeout_s,
        given.kinds, given.phases, on_gpu,
    )  # fmt: skip
    manifest = programs.load()
    results = setting.folder / "results"
    results.mkdir(parents=True, exist_ok=True)
    chosen = manifest.on_gpu(given.names) if on_gpu else manifest.named(given.names)

    def one(program: Program) -> None:
        kept = results / f"{program.name}.json"
        if kept.exists() and not given.again:
            return
        found = run(program, manifest, setting)
        kept.write_text(json.dumps(found, indent=1) + "\n")
        print(report.line(program, found), flush=True)

    with ThreadPoolExecutor(given.at_once) as at_once:
        list(at_once.map(one, chosen))
    if not on_gpu:
        asked_for = [results / f"{program.name}.json" for program in chosen]
        report.write(manifest, {path.stem: json.loads(path.read_text()) for path in asked_for if path.exists()}, PAGE)
    return 0


def run(program: Program, manifest: Manifest, setting: Setting) -> dict[str, Any]:
    """Return what came out: `problem` where it could not be run, else the exit code of the drill and its JSON object."""
    work, said = setting.folder / "work" / program.name, setting.folder / "said" / program.name
    for folder in (work, said):
        shutil.rmtree(folder, ignore_errors=True)
    said.mkdir(parents=True)
    try:
        sources.lay_out(program, manifest, setting.sources, work)
    except sources.SourceError as e:
        return {"problem": str(e)}
    python = Path(sys.executable)
    if not setting.on_gpu:
        python = environments.make(manifest.environments[program.environment], setting.folder / "environments")
    for maker in program.data:
        subprocess.run([str(python), str(Path(__file__).with_name("tiny_data.py")), maker, str(work)], check=True)
    began_s = time.monotonic()
    device = one_gpu.environment(os.environ) | {"ONE_GPU_LOCAL_RANK": "0"} if setting.on_gpu else {}
    found: dict[str, Any] = {"commit": _commit()}
    target = said / "drill.json"
    only = [word for name in ("kinds", "phases") if (of := getattr(setting, name)) for word in (f"--{name}", of)]
    found["drill_exit_code"] = _call(
        [
            *_torchrelay(python), "drill", "--nproc-per-node", str(program.ranks), "--faults", str(setting.faults),
            "--steps", str(program.steps), "--seed", str(setting.seed), "--timeout", f"{setting.timeout_s:.0f}",
            "--json", str(target), "--keep", str(said / "kept"), *only, *program.command,
        ],
        {**os.environ, **VARIABLES, **program.variables, **device}, work, said / "drill",
    )  # fmt: skip
    found["drill"] = json.loads(target.read_text()) if target.exists() else None
    if found["drill"] is None:
        found["problem"] = (said / "drill.stderr").read_text()[-2000:]
    found["wall_s"] = round(time.monotonic() - began_s, 1)
    return found


def _torchrelay(python: Path) -> list[str]:
    return [str(python), "-m", "torchrelay.cli"]


def _call(command: list[str], variables: dict[str, str], work: Path, said: Path) -> int:
    with open(f"{said}.stdout", "wb") as out, open(f"{said}.stderr", "wb") as err:
        return subprocess.run(command, cwd=work, env=variables, stdout=out, stderr=err).returncode


PARTS = ("protocol", "shim", "agent", "controller", "cli")
"""What a program is run with; a commit that changes only tests or pages has no results of its own."""


def _commit() -> str:
    if shutil.which("git") is None:
        return ""
    command = ["git", "-C", str(environments.PROJECT), "log", "-1", "--format=%h", "--", *PARTS]
    return subprocess.run(command, capture_output=True).stdout.decode().strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
