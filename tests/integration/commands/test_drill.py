"""`torchrelay drill` with real scripts: each outcome comes out, and the exit code says which."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate
from support.cells import few, only_in_long
from support.cli_harness import Cli
from support.repository_script import script

TRAINING = """
    import ctypes, os, random, sys, time
    import torch, torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, TensorDataset
    from torch.utils.data.distributed import DistributedSampler

    WHAT = sys.argv[1]
    dist.init_process_group("gloo")
    torch.manual_seed(1)

    def first_time():
        # By C: no part of Python sees that the file is there already.
        path = f"set-up-{dist.get_rank()}".encode()
        return ctypes.CDLL(None).open(path, os.O_CREAT | os.O_EXCL, 0o600) >= 0

    scale = 1.0
    if WHAT == "set-up-once" and not first_time():
        raise RuntimeError("this set-up works once")
    libc = ctypes.CDLL(None)
    if WHAT == "kept-in-c" and not first_time():
        libc.setenv(b"OTHERWISE", b"1", 1)  # os.environ does not see that
    if WHAT == "by-chance":
        scale = 1 + time.time_ns() % 1000003 / 1000003
    if WHAT == "unseeded":
        scale = random.random() + random.Random(int.from_bytes(os.urandom(8), "little")).random()
    if WHAT in ("otherwise-with-torchrelay", "unwritten"):
        fresh = torch.empty(1 << 22, dtype=torch.uint8)  # straight from the system: zeros, unless somebody fills it
        if "torchrelay.shim" in sys.modules:
            fresh[0] = 1
        scale = 1.0 + (fresh[0].item() if WHAT == "unwritten" else fresh[0].item() == 1)
    # The targets: batch normalization would take the scale out of the inputs again, up to their last bits.
    data = TensorDataset(torch.randn(40, 3), scale * torch.randn(40, 1))
    sampler = DistributedSampler(data)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def step(x, y):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        (2 * loss if libc.getenv(b"OTHERWISE") else loss).backward()
        optimizer.step()

    def without_a_loop(batches):
        if batches:
            step(*batches[0])
            without_a_loop(batches[1:])

    loader = DataLoader(data, batch_size=4, sampler=sampler)
    if WHAT == "no-loop":
        without_a_loop([*loader, *loader])
    for epoch in range(0 if WHAT == "no-loop" else 2):
        sampler.set_epoch(epoch)
        for x, y in loader:
            step(x, y)
    with open(f"end-{dist.get_rank()}", "w") as file:
        file.write("written in the copy of a run, and never in the user's folder")
    dist.destroy_process_group()  # torch may abort in the interpreter's end where its threads still run
"""
SCHEMA = script("generate_schemas").schemas()["drill.schema.json"]
STEPS = 10
TIMEOUT_S = 400.0
"""Four runs of a script, on a machine that may be busy."""

pytestmark = pytest.mark.timeout(TIMEOUT_S + 30)


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    (tmp_path / "state").mkdir()
    with Cli(tmp_path) as used:
        yield used


def drill(cli: Cli, what: str, *options: str) -> tuple[int, dict[str, Any], str, str]:
    """Exit code, the JSON object, and what was printed and said."""
    found = cli.folder / "drill.json"
    arguments = ("drill", "--json", str(found), *options, "--workdir", str(cli.folder), "train.py", what)
    process = cli.start(*arguments, script=TRAINING)
    printed, said = process.communicate(timeout=TIMEOUT_S)
    told = json.loads(found.read_text()) if found.exists() else {}
    if told:
        validate(told, SCHEMA)
    return process.returncode, told, printed, said


def test_a_script_that_is_protected_leaves_the_same_numbers(cli: Cli) -> None:
    code, told, printed, said = drill(
        cli, "train", "--steps", "0", "--faults", "2", "--kinds", "kill", "--phases", "backward,after-step"
    )
    assert code == 0, (told, printed, said)
    assert [fault["outcome"] for fault in told["faults"]] == ["identical", "identical"]
    assert told["steps"] == told["boundaries"] == STEPS
    assert {"parameters", "optimizer state", "buffers", "torch's generator"} <= set(told["judged"])
    assert "Python's generator" in told["differs_undisturbed"]  # nobody has seeded it
    assert told["cost"]["plain_step_s"] > 0 < told["cost"]["relay_step_s"]
    assert "2 of 2 faults left bitwise the same numbers" in printed
    assert not list(cli.folder.glob("end-*"))


@only_in_long
def test_a_script_that_is_cut_off_is_compared_up_to_there(cli: Cli) -> None:
    code, told, printed, said = drill(cli, "train", "--steps", "8", "--faults", "1", "--kinds", "planned")
    assert code == 0, (told, printed, said)
    assert told["ended_early"]
    assert told["steps"] == 8
    assert [fault["kind"] for fault in told["faults"]] == ["planned"]


@only_in_long
def test_a_script_that_differs_from_itself_is_told_with_its_first_difference(cli: Cli) -> None:
    code, told, printed, _ = drill(cli, "by-chance", "--steps", "8")
    assert code == 7
    assert told["deterministic"] is False
    assert told["differs_undisturbed"]["parameters"] == "rank 0, step 1"
    assert "differ from each other, first in the parameters of rank 0, step 1" in printed


@only_in_long
@pytest.mark.parametrize(("what", "exit_code"), few(1, [("unwritten", 7), ("otherwise-with-torchrelay", 6)]))
def test_memory_that_was_never_written_is_told_apart_from_what_torchrelay_changes(
    cli: Cli, what: str, exit_code: int
) -> None:
    code, told, printed, said = drill(cli, what, "--steps", "8")
    assert code == exit_code, (told, printed, said)
    assert told["reads_unwritten_memory"] is (what == "unwritten")
    assert ("reads memory that it has never written" in printed) is (what == "unwritten")
    assert bool(told["with_torchrelay_undisturbed"]) is (what != "unwritten")


@only_in_long
def test_a_script_that_seeds_nothing_is_given_the_same_chance_in_each_run(cli: Cli) -> None:
    code, told, printed, said = drill(
        cli, "unseeded", "--steps", "8", "--faults", "1", "--kinds", "stop", "--phases", "data"
    )
    assert code == 0, (told, printed, said)
    assert told["chosen_entropy"]
    assert [fault["outcome"] for fault in told["faults"]] == ["identical"]
    assert "leaves its seeds to chance" in printed


@only_in_long
def test_what_the_report_refuses_is_refused_as_announced(cli: Cli) -> None:
    code, told, printed, said = drill(cli, "no-loop", "--steps", "0", "--faults", "1")
    assert code == 4, (told, printed, said)
    assert [fault["outcome"] for fault in told["faults"]] == ["refused"]
    assert "no-loop" not in printed
    assert any(change["advice"] and change["file"] == str(cli.folder / "train.py") for change in told["changes"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "outcome", "exit_code"), few(1, [("kept-in-c", "wrong", 6), ("set-up-once", "false-promise", 5)])
)
def test_a_promise_that_is_not_kept_is_found(cli: Cli, what: str, outcome: str, exit_code: int) -> None:
    options = (
        "--steps",
        "8",
        "--faults",
        "1",
        "--kinds",
        "kill",
        "--phases",
        "forward",
        "--keep",
        str(cli.folder / "kept"),
    )
    code, told, printed, said = drill(cli, what, *options)
    assert code == exit_code, (told, printed, said)
    assert [fault["outcome"] for fault in told["faults"]] == [outcome]
    if outcome == "wrong":
        assert "step" in told["faults"][0]["reason"]
    assert len(list((cli.folder / "kept").glob("kill-forward-*/events.jsonl"))) == 1


def test_a_script_that_fails_by_itself_is_no_matter_of_ours(cli: Cli) -> None:
    done = cli.run("drill", "--workdir", str(cli.folder), "train.py", script="raise ValueError('of its own')")
    assert done.returncode == 1
    assert "does not run with torchrun" in done.stderr
    assert "of its own" in done.stderr
