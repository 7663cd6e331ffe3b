"""Digests of what data sets hold: the same for equal content in whatever objects, another one for another content."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy
import pytest
import torch
from support.host_state import take
from torch.utils.data import DataLoader, Dataset, TensorDataset

from torchrelay.shim.capture.iteration import data_content
from torchrelay.shim.capture.iteration.data_changes import DataChanges
from torchrelay.shim.capture.state.data_origins import DataOrigins, Maker

WHOLE_BYTES = 1 << 16


class Items(Dataset[Any]):
    def __init__(self, content: Any) -> None:
        self.content = content

    def __len__(self) -> int:
        return 4

    def __getitem__(self, place: int) -> int:
        return place


class Silent:
    """Runs none of its own code but to be made."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __reduce__(self) -> Any:
        raise AssertionError("code of the script has run")

    __eq__ = __hash__ = __len__ = __iter__ = __getattr__ = __reduce__  # type: ignore[assignment]


def _drawn(seed: int, size: int) -> torch.Tensor:
    return torch.rand(size, generator=torch.Generator().manual_seed(seed))


def _scaled(factor: float) -> Callable[[float], float]:
    return lambda number: factor * number


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: _drawn(seed, 100),
        lambda seed: _drawn(seed, WHOLE_BYTES),
        lambda seed: _drawn(seed, 2 * WHOLE_BYTES).view(2, -1).t(),
        lambda seed: _drawn(seed, 100).numpy(),
        lambda seed: numpy.asfortranarray(_drawn(seed, 2 * WHOLE_BYTES).numpy().reshape(2, -1)),
        lambda seed: numpy.frombuffer(_drawn(seed, WHOLE_BYTES).numpy().tobytes()),
        lambda seed: numpy.array([f"a{seed}", None], dtype=object),
        lambda seed: numpy.array([f"2020-01-0{seed}"], dtype="datetime64[D]"),
        lambda seed: [seed, *range(10_000)],
        lambda seed: [[number, f"text {number}", seed] for number in range(200)],
        lambda seed: [{"tokens": [1, 2, seed]}, (seed,)],
        lambda seed: {f"name {number}": {"of": number + seed} for number in range(200)},
        lambda seed: {"a", "b", f"c{seed}", (1, 2)},
        lambda seed: frozenset({"a", "b", f"c{seed}"}),
        lambda seed: collections.deque([seed, None]),
        lambda seed: bytearray([seed] * 10),
        lambda seed: memoryview(bytes([seed] * 10)),
        lambda seed: Silent(seed),
        lambda seed: [Silent(1), Silent(seed)],
        lambda seed: _scaled(seed),
        lambda seed: partial(_scaled, seed),
        lambda seed: TensorDataset(_drawn(seed, 10)),
        lambda seed: [Items([seed])],
        lambda seed: numpy.float32(seed),
        lambda seed: torch.nn.Linear(seed, 2),
    ],
)
def test_equal_content_has_equal_digests_and_another_has_others(
    make: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_content, "_WHOLE_BYTES", WHOLE_BYTES)
    torch.manual_seed(1)
    first = Items([make(1)])
    torch.manual_seed(1)
    content = data_content.content_of(first)
    assert content.keys() == {"content"}
    assert data_content.differing(Items([make(1)]), content) == []
    assert data_content.differing(Items([make(2)]), content) == ["content"]


def test_what_leads_back_to_itself_has_an_end() -> None:
    circle: list[Any] = [1]
    circle.append(circle)
    deep: list[Any] = [1]
    for _ in range(10_000):
        deep = [deep]
    content = data_content.content_of(Items([circle, deep]))
    assert data_content.differing(Items([circle, deep]), content) == []


def test_which_parts_are_one_object_makes_no_difference() -> None:
    shared = [1, "two"]
    assert data_content.content_of(Items([shared, shared])) == data_content.content_of(
        Items([copy.copy(shared), copy.copy(shared)])
    )


def test_an_attribute_that_is_gone_differs() -> None:
    data = Items([1])
    content = data_content.content_of(data)
    del data.content
    assert data_content.differing(data, content) == ["content"]


def test_a_loader_differs_by_what_it_was_made_with() -> None:
    data = Items([1])
    content = data_content.content_of(DataLoader(data, batch_size=2))
    assert data_content.differing(DataLoader(data, batch_size=2), content) == []
    assert data_content.differing(DataLoader(data, batch_size=4), content) == ["batch_size"]


def test_it_leaves_inference_mode() -> None:
    with torch.inference_mode():
        content = data_content.content_of(Items([torch.ones(100)]))
    assert data_content.differing(Items([torch.ones(100)]), content) == []
    assert data_content.differing(Items([torch.zeros(100)]), content) == ["content"]


def test_what_draws_have_changed_is_not_compared() -> None:
    """A new process has not drawn from its own yet."""
    data, changes, origins = Items([1]), DataChanges(), DataOrigins()
    data.cache = {}  # type: ignore[attr-defined]
    changes.drawn(data)
    data.cache[3] = [4]  # type: ignore[attr-defined]
    origins.note([data], Maker.EACH_PROCESS)
    origins.goes_on(0)
    data_content.tell(take({"data": data}), origins, changes, around=False)
    assert (origins.origin(data).content or {}).keys() == {"content"}


def test_what_a_step_has_made_is_read_once_a_loop_around_goes_on() -> None:
    data, origins = Items([1]), DataOrigins()
    origins.note([data], Maker.STEP)
    state = take({"data": data})
    data_content.tell(state, origins, DataChanges(), around=False)
    assert origins.origin(data).content is None
    data_content.tell(state, origins, DataChanges(), around=True)
    assert (origins.origin(data).content or {}).keys() == {"content"}
