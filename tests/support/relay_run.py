"""`torchrelay run` around a training script, as a user starts it, with what it says and what its ranks leave behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.training import SCRIPTS, differences

RUN_S = 170.0
AT_THE_END_S = 3.0
LEAN = Path(__file__).parent / "lean"
"""On the path of references and runs alike; `make test-long` has torch as it is."""
_NOT_OURS = ("TORCHRELAY_SECRET", "TORCHRELAY_STATE_DIR")


def _nobody(pid: int) -> None:
    """Watches nothing."""


@dataclass(frozen=True)
class Finished:
    """A run that has ended; `out` is the folder where its ranks wrote their results."""

    status: int
    stdout: str
    stderr: str
    events: tuple[dict[str, Any], ...]
    out: Path

    def named(self, name: str) -> list[dict[str, Any]]:
        return [event for event in self.events if event["name"] == name]

    def faults(self) -> list[str]:
        return [event["fault"] for event in self.named("fault_injected")]

    def committed(self) -> list[dict[str, Any]]:
        return [event for event in self.named("migration_finished") if event["outcome"] == "committed"]

    def told(self) -> str:
        """For the message of a failed assertion."""
        quiet = ("progress", "rank_report")
        events = [json.dumps(e)[:400] for e in self.events if e["name"] not in quiet]
        return "\n".join([f"exit code {self.status}", *events[-40:], self.stderr[-6000:], self.stdout[-2000:]])


def plain(
    folder: Path,
    script: str,
    *args: str,
    ranks: int,
    environment: Mapping[str, str] | None = None,
    limit_s: float = RUN_S,
) -> Path:
    """The folder with the results of a run without torchrelay."""
    out = _new(folder / "out")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    with open(folder / "stdout", "w") as stdout, open(folder / "stderr", "w") as stderr:
        process = subprocess.Popen(
            [*command, str(SCRIPTS / script), str(out), *args],
            env=_environment(environment or {}),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
        try:
            results = [out / f"rank-{rank}.json" for rank in range(ranks)]
            was_ended = _ends(process, lambda: all(result.exists() for result in results), limit_s)
        finally:
            process.terminate()  # torchrun ends its processes then
            process.wait()
    said = (folder / "stderr").read_text()
    is_known = was_ended or "terminate called without an active exception" in said
    assert process.returncode == 0 or is_known, f"exit code {process.returncode}, within {limit_s:.0f} s: {said}"
    for rank in range(ranks):
        json.loads((out / f"rank-{rank}.json").read_text())
    return out


def _ends(process: subprocess.Popen[bytes], is_whole: Callable[[], bool], limit_s: float) -> bool:
    """Whether it has to be ended: torch 2.13 was seen to abort or to hang after the script's last line, with all results written
    (gloo's thread lets go of a tensor, for which it needs the lock that the main thread holds while it waits for that thread).
    """
    end_s = time.monotonic() + limit_s
    while not is_whole() and process.poll() is None and time.monotonic() < end_s:
        time.sleep(0.02)
    try:
        process.wait(AT_THE_END_S if is_whole() else 0.0)
    except subprocess.TimeoutExpired:
        return is_whole()
    return False


def relay(
    folder: Path,
    script: str,
    *args: str,
    ranks: int,
    spares: int = 1,
    inject: Sequence[str] = (),
    options: Sequence[str] = (),
    planned_at: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
    out: Path | None = None,
    watch: Callable[[int], None] = _nobody,
    limit_s: float = RUN_S,
    standard_input: Path = Path(os.devnull),
) -> Finished:
    """`out`: where ranks write their results, if not below `folder`. `standard_input`: the command's.

    `watch` is called with the command's process again and again while it runs.
    `planned_at`: the script waits behind these steps, each until one more planned migration is about to stop the job.
    """
    out, holds, events = out or _new(folder / "out"), _new(folder / "holds"), folder / "events.jsonl"
    held = [step + 1 for step in sorted(planned_at)]
    variables = {
        "HOLD_FOLDER": str(holds),
        "HOLD_STEPS": ",".join(map(str, held)),
        **(environment or {}),
    }
    command = [sys.executable, "-m", "torchrelay.cli", "run", f"--nproc-per-node={ranks}", f"--spares={spares}"]
    command += [
        "--events",
        str(events),
        "--max-restarts=0",
        "--respawn-limit=0",
        "--no-refill",
        *options,
        *(f"--inject={fault}" for fault in inject),
    ]
    command += [str(SCRIPTS / script), str(out), *args]
    with (
        tempfile.TemporaryDirectory(prefix="relay-") as state,  # short, for its sockets' paths
        open(folder / "stdout", "w") as stdout,
        open(folder / "stderr", "w") as stderr,
        open(standard_input, "rb") as stdin,
    ):
        variables["TORCHRELAY_STATE_DIR"] = state
        process = subprocess.Popen(
            command, env=_environment(variables), cwd=folder, stdin=stdin, stdout=stdout, stderr=stderr
        )
        try:
            _wait(process, events, [holds / str(step) for step in held], watch, limit_s)
        finally:
            if process.poll() is None:
                process.kill()  # its controller, agent and ranks end when it is gone
                process.wait()
    said = (folder / "stdout").read_text(), (folder / "stderr").read_text()
    return Finished(process.returncode, *said, tuple(read_events(events)), out)


def _wait(
    process: subprocess.Popen[bytes], events: Path, holds: list[Path], watch: Callable[[int], None], limit_s: float
) -> None:
    end = time.monotonic() + limit_s
    watches = watch is not _nobody
    while process.poll() is None and (watches or not all(hold.exists() for hold in holds)) and time.monotonic() < end:
        watch(process.pid)
        for hold in holds[: planned_and_ready(read_events(events))]:
            hold.touch()
        time.sleep(0.02)
    process.wait(max(end - time.monotonic(), 0.0))


def planned_and_ready(events: list[dict[str, Any]]) -> int:
    """How many planned migrations are about to stop the job."""
    planned = {e["migration"] for e in events if e["name"] == "migration_started" and e["kind"] == "planned"}
    return len({e["migration"] for e in events if e["name"] == "phase" and e["phase"] == "quiesce"} & planned)


def read_events(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file that `--events` writes."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _environment(more: Mapping[str, str]) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if k not in _NOT_OURS}
    lean = {} if "TORCHRELAY_TEST_ROUNDS" in os.environ else {"PYTHONPATH": str(LEAN)}
    return {**inherited, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", **lean, **more}


def _new(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def assert_unharmed(run: Finished, reference: Path, ranks: int, faults: Sequence[str], migrations: int) -> None:
    """The faults fired, the migrations were committed, no step was lost, and every rank ended bitwise as in `reference`."""
    assert run.status == 0, run.told()
    assert sorted(run.faults()) == sorted(faults), run.told()
    assert len(run.committed()) == migrations, run.told()
    for migration in run.committed():
        assert migration["steps_redone"] <= (0 if migration["kind"] == "planned" else 1), run.told()
    assert differences(reference, run.out, ranks) == [], run.told()
