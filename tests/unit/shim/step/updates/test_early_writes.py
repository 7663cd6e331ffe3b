"""Large tensors that a step writes to before its gate go back with it, from the first time on that this was seen."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.loop_script import LoopScript

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.step.updates import early_writes
from torchrelay.shim.step.updates.uncounted_writes import UncountedWrites

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


VIEWS = """
    import torch
    class Buffers:
        def __init__(self):
            self.whole = torch.zeros(2 * SIZE)
            self.own = torch.split(self.whole, SIZE)[1]
    def train(buffers):
        for number in range(8):
            buffers.own.mul_(0.5).add_(number)
            buffers.whole[0] += 1
            if number in FAILS:
                fail()
            step()
        return buffers.own[0].item(), buffers.whole[0].item()
    done = train(Buffers())
"""


@pytest.mark.parametrize("fails", [(3,), (2, 5)])
def test_views_of_one_memory_go_back_together(fails: tuple[int, ...], script: LoopScript) -> None:
    script.failures = len(fails)
    names = script.run(VIEWS, SIZE=LARGE, FAILS=fails)
    assert script.stood == ["body"] * len(fails)
    assert names["done"] == (expected()[1], 8.0)


GATHERED = """
    import torch
    class Part(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gathered = torch.zeros(2 * SIZE)
            self.first, self.second = self.gathered[:SIZE], self.gathered[SIZE:]
    def train(part):
        storage, kept = part.gathered.untyped_storage(), part.gathered.untyped_storage().nbytes()
        for number in range(8):
            storage.resize_(kept)
            part.gathered.fill_(number)
            storage.resize_(0)
            step()
        return number
    done = train(Part())
"""


def test_memory_that_is_let_go_of_between_uses_is_never_read(script: LoopScript) -> None:
    """As that of parameters which FullyShardedDataParallel gathers: reading a view of it ends the process."""
    assert script.run(GATHERED, SIZE=LARGE)["done"] == 7


MOMENTUM = """
    import torch
    class Pair(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.key = torch.nn.Parameter(torch.ones(SIZE), requires_grad=False)
            self.register_buffer("mean", torch.zeros(SIZE))
    def train(pair):
        for number in range(8):
            pair.key.data = pair.key.data * 0.5 + number
            pair.mean.data.add_(number)
            if number in FAILS:
                fail()
            step()
        return pair.key[0].item(), pair.mean[0].item()
    done = train(Pair())
"""


@pytest.mark.parametrize("fails", [(), (1,), (3,), (7,), (2, 5)])
def test_what_torch_does_not_count_is_as_it_was(fails: tuple[int, ...], script: LoopScript) -> None:
    script.failures = len(fails)
    names = script.run(MOMENTUM, SIZE=LARGE, FAILS=fails)
    key = 1.0
    for number in range(8):
        key = key * 0.5 + number
    assert script.stood == ["body"] * len(fails)
    assert names["done"] == (key, 28.0)
    assert script.engine.updates.writes.paths == ("0:key", "0:mean")
    assert "data" not in vars(torch.Tensor)


def test_nobody_looks_at_each_step(script: LoopScript, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_writes, "_LOOKS", 0)
    script.run(MOMENTUM, SIZE=LARGE, FAILS=())
    writes = script.engine.updates.writes
    assert writes.paths == ("0:key", "0:mean")  # found at the seventh gate
    assert writes.copied_bytes == 2 * 4 * LARGE


def test_code_that_is_compiled_while_somebody_looks_runs_as_it_is_afterwards() -> None:
    """A recompilation may round differently."""
    graphs = []

    def backend(module: Any, example: Any) -> Any:
        graphs.append(module)
        return module.forward

    average, x = torch.zeros(LARGE), torch.ones(LARGE)
    compiled = torch.compile(lambda x: (x.data * 2 + average.data).sum(), backend=backend)
    writes = UncountedWrites()
    writes.begin([("average", average)])
    first = compiled(x)
    assert writes.written() == []
    writes.end()
    assert torch.equal(compiled(x), first)
    assert len(graphs) == 1


def test_a_model_that_is_moved_to_where_it_is_is_not_written_to() -> None:
    """As evaluations do it: each parameter is given the data that it has."""
    layer, writes = torch.nn.Linear(3, 3), UncountedWrites()
    layer(torch.ones(2, 3)).sum().backward()
    writes.begin([*layer.named_parameters()])
    layer.float()
    layer.to("cpu")
    assert writes.written() == []
    layer.weight.data = layer.weight.data.t()
    assert [path for path, _ in writes.written()] == ["weight"]
    layer.double()
    assert [path for path, _ in writes.written()] == ["weight", "bias"]
    writes.end()
