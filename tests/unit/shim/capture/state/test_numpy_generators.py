"""The state of numpy's generators, of what they draw bits from, and of the seed sequences that count what they have spawned."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from torchrelay.shim.capture.state.parts import numpy_random_state, put_numpy_random_state


def _drawn(obj: Any) -> list[Any]:
    """Use it, and return what came of it."""
    drawn = [obj.random_raw()] if hasattr(obj, "random_raw") else []
    drawn += [child.generate_state(1)[0] for child in obj.spawn(2)] if hasattr(obj, "generate_state") else []
    if hasattr(obj, "normal"):
        drawn.append(obj.normal())
    return drawn + ([child.normal() for child in obj.spawn(1)] if hasattr(obj, "bit_generator") else [])


@pytest.mark.parametrize(
    "make",
    [
        lambda: numpy.random.SeedSequence(5, spawn_key=(2,)),
        lambda: numpy.random.SeedSequence([1, 2, 3]),
        lambda: numpy.random.PCG64DXSM(5),
        lambda: numpy.random.default_rng(7),
        lambda: numpy.random.Generator(numpy.random.MT19937(3)),
        lambda: numpy.random.RandomState(3),
    ],
    ids=["sequence", "sequence of numbers", "bits", "generator", "twister", "legacy"],
)
def test_it_goes_back_and_forth(make: Any) -> None:
    obj = make()
    _drawn(obj)
    state = numpy_random_state(obj)
    expected = _drawn(obj)
    put_numpy_random_state(obj, state)
    assert _drawn(obj) == expected
    other = make()
    put_numpy_random_state(other, state)
    assert _drawn(other) == expected
