"""Large tensors of a step's own that nobody reads behind its update: when that is counted on, and when no more."""

from __future__ import annotations

import weakref

import pytest
import torch
from support.host_state import take

from torchrelay.shim.step.updates.unread_results import UnreadResults

PATH = "model.grad_sample"


def step(results: UnreadResults, *, read: bool = False, keeps: bool = False) -> bool:
    """Go through a step that is followed. Return whether what it has made was known to be unread at its gate."""
    made = torch.zeros(3)
    known = PATH in results.at_gate({PATH: made})
    results.drop()
    results.followed({PATH: made}, [PATH] if read else [])
    results.at_boundary(take({"kept": made} if keeps else {}))
    return known


def test_two_steps_have_to_leave_it_unread() -> None:
    results = UnreadResults()
    assert [step(results) for _ in range(4)] == [False, False, True, True]


@pytest.mark.parametrize(("read", "keeps"), [(True, False), (False, True)])
def test_one_that_is_read_or_kept_once_is_never_counted_on(read: bool, keeps: bool) -> None:
    results = UnreadResults()
    for _ in range(3):
        step(results)
    assert step(results, read=read, keeps=keeps)
    assert not any(step(results) for _ in range(4))


def test_what_a_step_has_made_is_not_held() -> None:
    results = UnreadResults()
    made = torch.zeros(3)
    results.at_gate({PATH: made})
    results.drop()
    results.followed({PATH: made}, [])
    there = weakref.ref(made)
    del made
    assert there() is None
