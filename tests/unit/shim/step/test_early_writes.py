"""Large tensors that a step writes to before its gate go back with it, from the first time on that this was seen."""

from __future__ import annotations

import textwrap

import pytest
import torch
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


def test_the_first_step_can_be_done_again_too(script: LoopScript) -> None:
    script.failures = 2
    assert script.run(QUEUE, SIZE=LARGE, FAILS=(0, 4))["done"] == expected()


PAST_COUNTS = {
    "assignment": "key.data = key.data * 0.5 + other.data * 0.5",
    "in place": "key.data.mul_(0.5).add_(other.data, alpha=0.5)",
    "a view": "key.data[1:].view(-1).mul_(0.5)",
    "both": "key.data = key.data * 0.5; key.data.add_(other.data)",
    "beside an alias": "same_memory.mul_(0.5); key.data = key.data + same_memory",
}
MOMENTUM = """
    import torch
    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(SIZE), requires_grad=False)
    def train(encoder, other, key):
        same_memory = key.detach()
        for number in range(STEPS):
            other += 1 + number
            if number >= BEGINS:
                with torch.no_grad():
                    WRITE
            if number in FAILS:
                fail()
            step()
        return key.tolist(), same_memory.tolist()
    encoder = Encoder()
    done = train(encoder, torch.zeros(SIZE), encoder.weight)
"""


@pytest.mark.parametrize("fails", [(0,), (1, 3), (5, 6)])
@pytest.mark.parametrize("how", PAST_COUNTS)
def test_what_is_written_past_torchs_counts_is_as_it_was(how: str, fails: tuple[int, ...], script: LoopScript) -> None:
    source = MOMENTUM.replace("WRITE", PAST_COUNTS[how])
    script.failures = len(fails)
    names = script.run(source, SIZE=LARGE, STEPS=8, BEGINS=0, FAILS=fails)
    assert script.stood == ["body"] * len(fails)
    undisturbed = {"SIZE": LARGE, "STEPS": 8, "BEGINS": 0, "FAILS": (), "step": lambda: None}
    exec(textwrap.dedent(source), undisturbed)
    assert names["done"] == undisturbed["done"]


def test_what_was_made_in_inference_mode_is_as_it_was(script: LoopScript) -> None:
    script.failures = 2
    names = script.run(
        """
        import torch
        with torch.inference_mode():
            bank, same = torch.zeros(SIZE), torch.ones(SIZE)
        for number in range(4):
            with torch.inference_mode():
                bank.add_(number + 1)
            if number in (0, 2):
                fail()
            step()
        """,
        SIZE=LARGE,
    )
    assert (names["bank"][0].item(), names["same"][0].item()) == (10.0, 1.0)


def test_a_step_that_writes_past_the_counts_later_than_the_first_ones_is_refused(
    script: LoopScript,
) -> None:
    source = MOMENTUM.replace("WRITE", PAST_COUNTS["in place"])
    script.failures = 1
    with pytest.raises(StateMismatchError, match=r"written to since the boundary, past torch's count.*key"):
        script.run(source, SIZE=LARGE, STEPS=8, BEGINS=4, FAILS=(4,))


def test_a_step_later_than_the_first_ones_is_copied_from_the_next_one_on(script: LoopScript) -> None:
    source = MOMENTUM.replace("WRITE", PAST_COUNTS["assignment"])
    script.failures = 1
    script.run(source, SIZE=LARGE, STEPS=8, BEGINS=4, FAILS=(5,))
    assert script.stood == ["body"]
    assert "data" not in vars(torch.Tensor)


def test_more_than_can_be_copied_in_each_step_is_left_alone(
    script: LoopScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early_writes, "MOST_BYTES", LARGE)
    script.failures = 1
    with pytest.raises(StateMismatchError, match="written to since the boundary"):
        script.run(QUEUE, SIZE=LARGE, FAILS=(3,))
    assert script.engine.updates.writes.copied_bytes == 0
    reports = [r for r in script.sent if type(r).__name__ == "Report"]
    assert any(gap.kind == "early-writes" and "more than the" in gap.text for gap in reports[-1].gaps)
