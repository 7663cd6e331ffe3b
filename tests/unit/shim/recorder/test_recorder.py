"""The recorder of a drill, in a process of its own as torchrun would start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

RECORDER = Path(__file__).parents[4] / "shim" / "torchrelay" / "shim" / "recorder"

TRAINING = """
    import os, random, sys
    import numpy, torch
    assert "TORCHRELAY_RECORD" not in os.environ
    assert not any("recorder" in entry for entry in [*sys.path, os.environ.get("PYTHONPATH", "")])
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().sum().backward()
        if step == int(os.environ.get("OTHER_BUFFER_AT", -1)):
            model[1].running_mean.add_(1.0)
        optimizer.step()
    if os.fork() == 0:
        optimizer.step()  # a child's steps are none of the rank's
        os._exit(0)
    print("at the end")
"""


def run(
    folder: Path, script: str, rank: int = 0, other_buffer_at: int = -1, **settings: Any
) -> tuple[list[dict[str, Any]], str]:
    """The lines of the rank, and what the script printed."""
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(textwrap.dedent(script))
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {
        "RANK": str(rank),
        "WORLD_SIZE": "1",
        "OTHER_BUFFER_AT": str(other_buffer_at),
        "PYTHONPATH": str(RECORDER),
        "TORCHRELAY_RECORD": json.dumps({"folder": str(folder), **settings}),
    }
    command = [sys.executable, str(folder / "train.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    path = folder / f"rank-{rank}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return lines, done.stdout


def test_each_step_is_a_line_and_only_what_differs_differs(tmp_path: Path) -> None:
    one, printed = run(tmp_path / "one", TRAINING)
    other, _ = run(tmp_path / "other", TRAINING, other_buffer_at=2)
    assert printed == "at the end\n"
    assert [next(key for key in line if key in ("step", "end")) for line in one] == ["step"] * 4 + ["end"]
    assert len({line["step"]["parameters"] for line in one[:4]}) == 4
    parts = [[name for name in a["step"] if a["step"][name] != b["step"][name]] for a, b in zip(one[:4], other[:4])]
    assert parts == [[], [], ["buffers"], ["buffers"]]
    assert one[4]["end"] == other[4]["end"]


IN_ORDER = """
    import torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(3, 3) for _ in range(3)))
    parameters = [*model.parameters()]
    optimizer = torch.optim.Adam(parameters[::-1] if "turned" in __file__ else parameters)
    for step in range(2):
        model(torch.ones(5, 3)).square().sum().backward()
        optimizer.step()
"""


def test_the_order_in_which_an_optimizer_was_given_its_parameters_changes_no_line(tmp_path: Path) -> None:
    one, _ = run(tmp_path / "one", IN_ORDER)
    other, _ = run(tmp_path / "turned", IN_ORDER)
    names = ("parameters", "optimizer state", "hyperparameters", "buffers")
    steps = [[{name: line["step"][name] for name in names} for line in lines[:2]] for lines in (one, other)]
    assert steps[0] == steps[1]
    assert one[2]["end"]["parameters"] == other[2]["end"]["parameters"]


WRAPPED = """
    import torch
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    around = [torch.nn.Sequential(model), torch.nn.Sequential(torch.nn.Sequential(torch.nn.Dropout(), model))]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    del around[{kept}:]
    model(torch.ones(4, 2)).sum().backward()
    {change}
    optimizer.step()
"""


def test_what_is_left_of_a_wrapper_around_a_model_changes_no_buffer(tmp_path: Path) -> None:
    def buffers(name: str, kept: int, change: str = "pass") -> str:
        lines, _ = run(tmp_path / name, WRAPPED.format(kept=kept, change=change))
        return str(lines[0]["step"]["buffers"])

    assert buffers("none", 0) == buffers("one", 1) == buffers("both", 2)
    assert buffers("none", 0) != buffers("changed", 2, "model[1].running_mean.add_(1)")


def test_a_script_ends_after_the_step_that_it_is_told(tmp_path: Path) -> None:
    lines, printed = run(tmp_path / "counted", TRAINING, stop_after=2)
    assert ["step" in line for line in lines] == [True, True, False]
    assert lines[2]["stopped"]
    assert printed == ""
    wanted = {"0": {"parameters": lines[1]["step"]["parameters"]}}
    known, _ = run(tmp_path / "known", TRAINING, stop_at=wanted)
    assert [line.get("step") for line in known] == [line.get("step") for line in lines]


ABORTS_AT_THE_END = """
    import atexit, os
    import torch

    class Thread:
        def __del__(self, abort=os.abort):  # as torch's may, when the interpreter takes modules down
            abort()

    left = Thread()
    atexit.register(print, "said at exit")
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for step in range(STEPS):
        parameter.square().sum().backward()
        optimizer.step()
"""


def test_a_script_that_is_cut_off_is_spared_the_interpreters_end_and_nothing_else(tmp_path: Path) -> None:
    _, printed = run(tmp_path / "cut", ABORTS_AT_THE_END.replace("STEPS", "9"), stop_after=2)
    assert printed == "said at exit\n"
    with pytest.raises(AssertionError):  # its own end is its own affair
        run(tmp_path / "whole", ABORTS_AT_THE_END.replace("STEPS", "1"), stop_after=2)


def test_steps_take_long_while_a_planned_move_is_waited_for(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.touch()
    lines, _ = run(tmp_path / "slow-run", TRAINING, stop_after=3, slow=str(slow))
    steps = [line for line in lines if "step" in line]
    assert len(steps) == 3
    assert steps[2]["entered_s"] - steps[0]["left_s"] >= 0.3


def test_times_only_writes_the_steps_numbers_and_in_the_end_the_weights(tmp_path: Path) -> None:
    """Also of an optimizer that is gone by the end, as one in a script's `main` is."""
    in_main = textwrap.dedent(TRAINING).replace("\n", "\n    ")
    lines, _ = run(tmp_path, f"def main():\n    {in_main}\nmain()\n", times_only=True)
    *steps, end = lines
    assert [line["number"] for line in steps] == [1, 2, 3, 4]
    assert all("step" not in line for line in steps)
    times = [line["unix_s"] for line in steps]
    assert times == sorted(times)
    assert end["end"]["parameters"]


def test_times_only_gives_no_numbers_where_the_optimizer_does_not_count(tmp_path: Path) -> None:
    lines, _ = run(tmp_path, TRAINING.replace("torch.optim.Adam(", "torch.optim.SGD(lr=0.1, params="), times_only=True)
    assert [line.get("number", "none") for line in lines[:-1]] == [None] * 4
