"""Data sets that go on with a stream of their own, wherever that stands."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few, only_in_long
from support.relay_run import assert_unharmed, relay
from support.training import differences

SCRIPT, PACKED, RANKS = "kept_stream.py", "packed_stream.py", 2


@only_in_long
def test_a_new_process_takes_no_batch_from_it_to_start_a_generator(undisturbed: Undisturbed, tmp_path: Path) -> None:
    faults = [
        "kill:rank=1,step=7,phase=forward", "kill:rank=0,step=12,phase=backward", "kill:rank=1,step=16,phase=after-step",
    ]  # fmt: skip
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(SCRIPT, ranks=RANKS), RANKS, faults, len(faults))


@pytest.mark.slow
@pytest.mark.parametrize("args", few(1, [("shared",), ()]))
def test_what_draws_change_in_the_scripts_objects_comes_again_with_their_items(
    undisturbed: Undisturbed, tmp_path: Path, args: tuple[str, ...]
) -> None:
    faults = [
        "kill:rank=0,step=6,phase=after-step", "kill:rank=1,step=9,phase=backward", "kill:rank=1,step=14,phase=optimizer",
        "kill:rank=0,step=17,phase=forward",
    ]  # fmt: skip
    run = relay(tmp_path, PACKED, *args, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(PACKED, *args, ranks=RANKS), RANKS, faults, len(faults))


@only_in_long
def test_a_stream_that_cannot_be_led_to_its_place_is_no_process_with_other_batches(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """The step draws from the stream's generator oftener than is written down: the job is started again."""
    args, faults = ("shared", "80"), ["kill:rank=1,step=76,phase=forward"]
    run = relay(tmp_path, PACKED, *args, ranks=RANKS, spares=1, inject=faults, options=("--max-restarts", "2"))
    assert run.status == 0, run.told()
    assert run.faults() == faults, run.told()
    assert not run.committed(), run.told()
    assert "drawn from anew, yields another item here" in run.told()
    assert differences(undisturbed(PACKED, *args, ranks=RANKS), run.out, RANKS) == []


@pytest.mark.slow
def test_a_stream_that_forgets_at_its_first_draw_where_it_was_to_go_on_is_told_so_again(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """Epochs are of 6 steps."""
    script = "resumable_stream.py"
    faults = [
        "kill:rank=0,step=3,phase=forward", "kill:rank=1,step=9,phase=backward", "kill:rank=0,step=12,phase=after-step",
        "kill:rank=1,step=16,phase=forward", "kill:rank=0,step=20,phase=optimizer",
    ]  # fmt: skip
    run = relay(tmp_path, script, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(script, ranks=RANKS), RANKS, faults, len(faults))


@only_in_long
@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="a generator that handles an exception is not entered before 3.11"
)
def test_a_generator_that_stands_where_it_handles_an_exception_goes_back_and_is_entered(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    """The fifth batch is the last one of an epoch: the sixth is drawn in the `except`."""
    script = "loader_made_in_except.py"
    faults = [
        "kill:rank=0,step=6,phase=forward", "kill:rank=1,step=6,phase=after-step", "kill:rank=1,step=11,phase=backward",
        "kill:rank=0,step=12,phase=forward", "kill:rank=0,step=16,phase=optimizer",
    ]  # fmt: skip
    run = relay(tmp_path, script, ranks=RANKS, spares=len(faults), inject=faults)
    assert_unharmed(run, undisturbed(script, ranks=RANKS), RANKS, faults, len(faults))
