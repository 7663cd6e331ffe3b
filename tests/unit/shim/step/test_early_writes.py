"""Large tensors that a step writes to before its gate go back with it, from the first time on that this was seen."""

from __future__ import annotations

import pytest
from support.loop_script import LoopScript

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.step import early_writes

QUEUE = """
    import torch
    class Bank(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("queue", torch.zeros(SIZE))
    def train(bank, average):
        for number in range(8):
            bank.queue[number] += 1 + number
            average.mul_(0.5).add_(number)
            if number in FAILS:
                fail()
            step()
        return bank.queue[:8].tolist(), average[0].item()
    done = train(Bank(), torch.zeros(SIZE))
"""
LARGE = 20_000


def expected() -> tuple[list[float], float]:
    average = 0.0
    for number in range(8):
        average = average * 0.5 + number
    return [1.0 + number for number in range(8)], average


@pytest.mark.parametrize("fails", [(), (1,), (3,), (7,), (2, 5)])
def test_a_memory_bank_that_is_written_in_the_step_is_as_it_was(fails: tuple[int, ...], script: LoopScript) -> None:
    script.failures = len(fails)
    names = script.run(QUEUE, SIZE=LARGE, FAILS=fails)
    assert script.stood == ["body"] * len(fails)
    assert names["done"] == expected()
    assert script.engine.updates.writes.copied_bytes == 2 * 4 * LARGE
    reports = [r for r in script.sent if type(r).__name__ == "Report"]
    assert any("before the optimizer step" in note for note in reports[-1].notes)


def test_the_first_step_that_writes_to_one_cannot_be_done_again(script: LoopScript) -> None:
    script.failures = 1
    with pytest.raises(StateMismatchError, match="written to since the boundary"):
        script.run(QUEUE, SIZE=LARGE, FAILS=(0,))


def test_more_than_can_be_copied_in_each_step_is_left_alone(
    script: LoopScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_writes, "MOST_BYTES", LARGE)
    script.failures = 1
    with pytest.raises(StateMismatchError, match="written to since the boundary"):
        script.run(QUEUE, SIZE=LARGE, FAILS=(3,))
    assert script.engine.updates.writes.copied_bytes == 0
