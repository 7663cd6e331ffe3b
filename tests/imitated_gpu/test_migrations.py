"""Migrations of NCCL jobs on the imitated GPU: what ranks have seen is that of the undisturbed run, to the last bit."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

PROGRAMS = Path(__file__).parent / "programs"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
TORCHRELAY = [sys.executable, "-m", "torchrelay.cli", "run"]
RUN_S = 240


def _run(command: list[str], out: Path, *options: str, program: str = "by_hand.py") -> subprocess.CompletedProcess[str]:
    out.mkdir(parents=True, exist_ok=True)
    script = [str(PROGRAMS / program), str(out), *options]
    return subprocess.run([*command, *script], capture_output=True, text=True, timeout=RUN_S, check=False, cwd=out)


def _results(out: Path, ranks: int) -> list[str]:
    return [(out / f"rank{rank}.json").read_text() for rank in range(ranks)]


def _struck_and_committed(events: Path) -> tuple[int, int]:
    """Faults that fired, and migrations that were committed."""
    seen = [json.loads(line) for line in events.read_text().splitlines()]
    struck = [e for e in seen if e["name"] == "fault_injected"]
    return len(struck), len([e for e in seen if e["name"] == "migration_finished" and e["outcome"] == "committed"])


@cache
def undisturbed(ranks: int, *options: str) -> list[str]:
    out = Path(mkdtemp())
    done = _run([*TORCHRUN, "--nproc-per-node", str(ranks)], out, *options)
    assert done.returncode == 0, done.stderr[-3000:]
    return _results(out, ranks)


@pytest.mark.parametrize(
    ("ranks", "spares", "options", "faults"),
    [
        pytest.param(2, 1, (), ["kill:rank=0,step=8,phase=backward"], id="killed in backward"),
        pytest.param(2, 1, (), ["kill:rank=1,step=13,phase=after-step"], id="killed while the others make a group"),
        pytest.param(2, 1, (), ["kill:rank=1,step=14,phase=gate"], id="killed at the gate"),
        pytest.param(2, 1, (), ["stop:rank=1,step=9,phase=forward"], id="stopped while a device waits for it"),
        pytest.param(2, 1, (), ["planned:rank=0,step=10"], id="moved"),
        pytest.param(2, 0, (), ["kill:rank=0,step=8,phase=optimizer"], id="another process in its place"),
        pytest.param(2, 1, ("eager",), ["kill:rank=1,step=9,phase=forward"], id="groups split from an eager one"),
        pytest.param(2, 1, ("eager",), ["planned:rank=1,step=16"], id="moved, groups split from an eager one"),
        pytest.param(
            3, 2, (), ["kill:rank=2,step=9,phase=gate", "kill:rank=0,step=16,phase=after-step"], id="two of three"
        ),
    ],
)
def test_a_rank_on_nccl_is_replaced_and_nothing_is_computed_otherwise(
    ranks: int, spares: int, options: tuple[str, ...], faults: list[str], tmp_path: Path
) -> None:
    events = tmp_path / "events.jsonl"
    inject = [part for fault in faults for part in ("--inject", fault)]
    command = [*TORCHRELAY, "--nproc-per-node", str(ranks), "--spares", str(spares), "--events", str(events), *inject]
    done = _run(command, tmp_path / "out", *options)
    assert done.returncode == 0, done.stderr[-4000:]
    assert _struck_and_committed(events) == (len(faults), len(faults)), done.stderr[-3000:]
    assert _results(tmp_path / "out", ranks) == undisturbed(ranks, *options)


@pytest.mark.parametrize(
    ("steps", "fault"), [("25", "kill:rank=1,step=5,phase=forward"), ("300", "planned:rank=0,step=8")]
)
def test_a_gradient_scaler_goes_back_and_moves_with_its_rank(steps: str, fault: str, tmp_path: Path) -> None:
    plain = _run([*TORCHRUN, "--nproc-per-node", "2"], tmp_path / "plain", steps, program="scaled.py")
    assert plain.returncode == 0, plain.stderr[-3000:]
    events = tmp_path / "events.jsonl"
    command = [*TORCHRELAY, "--nproc-per-node", "2", "--spares", "1", "--events", str(events), "--inject", fault]
    done = _run(command, tmp_path / "out", steps, program="scaled.py")
    assert done.returncode == 0, done.stderr[-4000:]
    assert _struck_and_committed(events) == (1, 1), done.stderr[-3000:]
    assert _results(tmp_path / "out", 2) == _results(tmp_path / "plain", 2)


def test_positions_that_were_not_received_are_not_used_as_indices(tmp_path: Path) -> None:
    """An aborted broadcast leaves garbage, and an index that is garbage would end the survivor's use of its device."""
    plain = _run([*TORCHRUN, "--nproc-per-node", "2"], tmp_path / "plain", program="positions.py")
    assert plain.returncode == 0, plain.stderr[-3000:]
    events, fault = tmp_path / "events.jsonl", "kill:rank=0,step=6,phase=after-step"
    command = [*TORCHRELAY, "--nproc-per-node", "2", "--spares", "1", "--events", str(events), "--inject", fault]
    done = _run(command, tmp_path / "out", program="positions.py")
    assert done.returncode == 0, done.stderr[-4000:]
    assert _struck_and_committed(events) == (1, 1), done.stderr[-3000:]
    assert _results(tmp_path / "out", 2) == _results(tmp_path / "plain", 2)


def test_what_a_rank_holds_of_its_device_does_not_grow_with_the_moves_of_another(tmp_path: Path) -> None:
    """Communicators, device memory, streams and Python threads, at each 20th step."""
    events, moves = tmp_path / "events.jsonl", 3
    inject = [part for step in range(300, 400 * moves, 400) for part in ("--inject", f"planned:rank=1,step={step}")]
    command = [*TORCHRELAY, "--nproc-per-node", "2", "--spares", "2", "--events", str(events), *inject]
    done = _run(command, tmp_path / "out", str(400 * moves), "0.05", program="moved_often.py")
    assert done.returncode == 0, done.stderr[-4000:]
    assert _struck_and_committed(events) == (moves, moves), done.stderr[-3000:]
    held = json.loads((tmp_path / "out" / "held0.json").read_text())
    assert held[-1][1] == 2, "a communicator for each of the two groups"
    settled = [amounts for step, *amounts in held if step >= 100]
    assert all(amounts == settled[0] for amounts in settled), settled
