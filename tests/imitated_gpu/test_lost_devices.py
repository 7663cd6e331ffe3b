"""A rank whose device fails for good, or that ends as native code does: it counts as lost, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from imitated_gpu import jobs

ILLEGAL, ASSERTION = "an illegal memory access was encountered", "device-side assert triggered"


@pytest.mark.parametrize(
    ("rank", "strike", "said"),
    [
        pytest.param(1, "device_error:1:9", ILLEGAL, id="in forward"),
        pytest.param(0, "device_error:0:9:optimizer", ILLEGAL, id="in the optimizer"),
        pytest.param(1, "device_error:1:9:behind", ILLEGAL, id="behind the gate"),
        pytest.param(1, "assert:1:9:backward", ASSERTION, id="an assertion, in backward"),
        pytest.param(0, "assert:0:9:behind", ASSERTION, id="an assertion, behind the gate"),
    ],
)
def test_a_rank_whose_device_has_failed_is_replaced_and_gives_nothing(
    rank: int, strike: str, said: str, tmp_path: Path
) -> None:
    job = jobs.run(tmp_path, 2, 1, [strike])
    assert job.returncode == 0, job.output[-4000:]
    assert [end["ranks"] for end in job.committed] == [[rank]]
    reason = f"rank {rank} (n0.w{rank}) ended itself: cuda:{rank} cannot be used any more: CUDA error: {said}"
    assert job.losses == [reason]
    assert "AcceleratorError" in job.output, "the script's author sees where it was met"
    assert job.results == jobs.undisturbed(2)


def test_a_device_that_fails_at_the_same_step_again_ends_the_job(tmp_path: Path) -> None:
    """It is the program's: every process that takes over would meet it."""
    job = jobs.run(tmp_path, 2, 2, ["assert:1:9:backward:always"])
    assert job.returncode != 0
    assert "the same failure at the same step twice" in job.said()


@pytest.mark.parametrize("name", ["SIGABRT", "SIGSEGV"])
@pytest.mark.parametrize("place", ["backward", "optimizer"])
def test_a_rank_that_native_code_ends_is_replaced(name: str, place: str, tmp_path: Path) -> None:
    job = jobs.run(tmp_path, 2, 1, [f"{name}:1:9:{place}"])
    assert job.returncode == 0, job.output[-4000:]
    assert job.losses == [f"rank 1 (n0.w1) was killed by {name}"]
    assert len(job.committed) == 1
    assert job.results == jobs.undisturbed(2)
