"""Habits belong to parameters, whatever these are called by now."""

from __future__ import annotations

import torch
from support.host_state import take

from torchrelay.shim.gradients.gradient_habits import Habits
from torchrelay.shim.gradients.gradient_record import GradientRecord, Learned
from torchrelay.shim.gradients.kept_gradients import KeptGradients
from torchrelay.shim.gradients.noted_gradient import Fate, NotedGradient


def test_habits_follow_parameters_that_are_called_otherwise() -> None:
    habits = Habits()
    habits.take_over(Learned(("a",), ("b", "d"), ("c",), (("c", 2), ("b", 1))))
    habits.rename({"a": "b", "b": "c"})
    assert (habits.kept, habits.dropped, habits.zeroed) == ({"b"}, {"c", "d"}, set())
    assert habits.learned() == Learned(("b",), ("c", "d"), (), (("c", 1),))


def test_a_comparison_tells_of_gradients_that_were_kept_by_then_under_these_names() -> None:
    habits = Habits()
    habits.at_boundary(3)
    found = NotedGradient("a", torch.zeros(1), torch.zeros(1), 0)
    found.fate = Fate.ADDED
    habits.learn({"a": found})
    habits.at_boundary(4)
    record = GradientRecord(("a",), learned=habits.learned())
    assert [record.compared_by(boundary) for boundary in (3, 4, 8)] == [frozenset(), {"a"}, {"a"}]
    taken_over = Habits()
    taken_over.take_over(habits.learned())
    assert taken_over.learned().kept_at == 4
    habits.at_boundary(9)
    habits.rename({"a": "b"})
    assert habits.learned().kept_at == 9


def test_a_model_that_comes_before_others_does_not_get_their_habits() -> None:
    first, second = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    gradients = KeptGradients()
    gradients.at_boundary(take({"m": first, "n": second}), 0)
    own = Learned(("module0.weight", "module0.bias"), ("module1.weight", "module1.bias"), (), ())
    gradients._habits.take_over(own)
    gradients.at_boundary(take({"a": torch.nn.Linear(2, 2), "m": first, "n": second}), 1)
    assert gradients._habits.kept == {"module1.weight", "module1.bias"}
    assert gradients._habits.dropped == {"module2.weight", "module2.bias"}


def test_a_model_in_the_place_of_another_one_has_its_habits() -> None:
    gradients = KeptGradients()
    gradients.at_boundary(take({"m": torch.nn.Linear(2, 2)}), 0)
    gradients._habits.take_over(Learned((), ("module0.weight",), (), ()))
    gradients.at_boundary(take({"m": torch.nn.Linear(2, 2)}), 1)
    assert gradients._habits.dropped == {"module0.weight"}
