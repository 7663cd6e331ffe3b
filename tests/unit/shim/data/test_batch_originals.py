"""A step that writes into its batch is given it again as it was."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from support.loop_script import LoopScript

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.data import batch_originals
from torchrelay.shim.data.replayed_item import ReplayedItem

LARGE = batch_originals.SMALL_BYTES  # elements of four bytes


def no_state(obj: Any) -> bool:
    return False


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.mul_(2),
        lambda x: x.copy_(torch.zeros_like(x)),
        lambda x: x.unsqueeze_(0),
        lambda x: x.mul_(torch.ones(4, requires_grad=True)),
        lambda x: x.requires_grad_().sum().backward(),
    ],
    ids=["in place", "copied to", "another shape", "part of a graph", "with a gradient"],
)
def test_a_batch_is_as_it_was_and_is_the_same_tensor(write: Any) -> None:
    x = torch.arange(4.0)
    drawn = ReplayedItem.note({"x": [x]})
    write(x)
    for _ in range(2):  # the step that is done again writes again
        drawn.put_back(no_state)
        again = drawn.again(no_state)["x"][0]
        assert again is x
        assert (x.tolist(), x.requires_grad, x.grad, x.grad_fn) == ([0, 1, 2, 3], False, None, None)
        x.add_(1)


def test_whoever_has_a_view_of_the_batch_sees_it_as_it_was() -> None:
    x = torch.zeros(4)
    view, drawn = x[:2], ReplayedItem.note(x)
    x.add_(1)
    drawn.put_back(no_state)
    assert view.tolist() == [0, 0]


def test_arrays_are_put_back_although_nobody_counts_what_is_written_to_them() -> None:
    images, frozen = numpy.zeros((2, 3)), numpy.zeros(2)
    frozen.flags.writeable = False
    drawn = ReplayedItem.note((images, [frozen]))
    images[:] = 7
    drawn.put_back(no_state)
    assert images.sum() == 0


def test_a_large_batch_that_was_not_copied_is_refused_and_one_that_was_not_written_is_not() -> None:
    x = torch.zeros(LARGE)
    drawn = ReplayedItem.note(x)
    drawn.check(no_state)
    drawn.put_back(no_state)
    x.add_(1)
    with pytest.raises(StateMismatchError, match="wrote into its own batch"):
        drawn.check(no_state)
    drawn.check(lambda obj: obj is x)


def test_parameters_are_no_batch() -> None:
    parameter = torch.nn.Parameter(torch.zeros(LARGE))
    drawn = ReplayedItem.note(parameter)
    with torch.no_grad():
        parameter.add_(1)
    drawn.check(no_state)
    drawn.put_back(no_state)
    assert parameter[0] == 1


SCRIPT = """
    import torch
    class Data:
        def __len__(self):
            return 6
        def __getitem__(self, n):
            if n == 6:
                raise IndexError
            return torch.full((SIZE,), float(n))
    batches = Data()
    it = iter(batches)
    first, second = [], []
    for step_number in range(6):
        x = next(it)
        first.append(x[0].item())
        x.sub_(0.5)
        if step_number in FAILS:
            fail()
        second.append(x[0].item())
        step()
"""


@pytest.mark.parametrize("fails", [(0,), (1,), (4,), (2, 3)])
@pytest.mark.parametrize("loop", ["next", "for"])
def test_a_step_that_normalises_its_batch_is_done_again_with_the_batch_as_it_was(
    loop: str, fails: tuple[int, ...], script: LoopScript
) -> None:
    script.failures = len(fails)
    source = SCRIPT
    if loop == "for":
        source = source.replace("for step_number in range(6):", "for step_number, x in enumerate(batches):")
        source = source.replace("        x = next(it)\n", "")
    names = script.run(source, SIZE=LARGE, FAILS=fails)
    assert len(script.stood) == len(fails)
    assert names["first"] == [0, 1, 2, 3, 4, 5]
    assert names["second"] == [-0.5, 0.5, 1.5, 2.5, 3.5, 4.5]
    assert script.engine.draws.batches.written
    reports = [r for r in script.sent if type(r).__name__ == "Report"]
    assert any("write into their batch in place" in note for note in reports[-1].notes)
