"""Since which boundary a rank's checks tell of the loop that it trains in."""

from __future__ import annotations

import gc
from typing import Any

import torch
from support.host_state import take
from support.loop_script import LoopScript

from torchrelay.protocol.messages import ReplicaCheck
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.replicas import replica_checks


def checks(script: LoopScript) -> list[tuple[int, int]]:
    sent: list[Any] = script.sent
    return [(c.boundary, c.since) for c in sent if isinstance(c, ReplicaCheck)]


def test_the_first_step_is_one_of_the_loop_that_it_shows_to_be_the_training_loop(script: LoopScript) -> None:
    script.run("""
        for epoch in range(2):
            for batch in range(3):
                step()
    """)
    assert checks(script) == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 0)]


def test_a_further_loop_begins_anew(script: LoopScript) -> None:
    script.run("""
        for batch in range(3):
            step()
        for batch in range(3):
            step()
    """)
    assert [since for boundary, since in checks(script) if boundary in (1, 2)] == [0, 0]
    assert {since for boundary, since in checks(script) if boundary > 4} == {3}


def test_ranks_are_compared_in_the_steps_after_a_migration_and_seldom_after_that(script: LoopScript) -> None:
    script.run(
        """
        for batch in range(60):
            if batch == 21:
                migrated()
            step()
    """,
        migrated=lambda: script.engine.replicas.migrated(21),
    )
    assert [b for b, _ in checks(script) if b > 17] == [22, 23, 25, 29, 32, 33, 37]


def test_small_buffers_are_told_beside_what_a_donor_gives(script: LoopScript) -> None:
    script.run("""
        import torch
        model = torch.nn.BatchNorm1d(4)
        for batch in range(2):
            model(torch.ones(2, 4))
            step()
    """)
    told: list[Any] = [c for c in script.sent if isinstance(c, ReplicaCheck)]
    assert set(told[-1].small) == {"buffer0.running_mean", "buffer0.running_var", "buffer0.num_batches_tracked"}
    assert told[-1].small["buffer0.num_batches_tracked"] != told[0].small["buffer0.num_batches_tracked"]
    assert not set(told[-1].small) & set(told[-1].digests)


def test_a_model_that_takes_another_one_s_turn_begins_anew(script: LoopScript) -> None:
    script.run("""
        import torch
        models = [torch.nn.Linear(2, 2) for _ in range(2)]
        for turn in range(2):
            for batch in range(3):
                model = models[turn]
                step()
        print(model)
    """)
    told: list[Any] = [c for c in script.sent if isinstance(c, ReplicaCheck)]
    since = {c.boundary: c.since for c in told}
    assert (since[2], since[3]) == (0, 0)
    assert (since[4], since[5]) == (4, 4), "the variable has the other one at that head"


SHOWS = """
class Schedule:
    def step(self): ...
def show():
    for turn in range(3):
        Schedule().step()
"""
"""A loop that stands in, since it seems to train."""


def test_a_loop_that_stands_in_and_makes_no_step_leaves_no_trace(script: LoopScript) -> None:
    """As one that the first rank alone runs, to show what has been trained: no other one begins anew there."""
    script.run(
        SHOWS
        + """
for epoch in range(3):
    for batch in range(7):
        step()
    show()
"""
    )
    assert [boundary for boundary, line in script.boundaries if line == 5] == [7], "it has stood in once"
    assert checks(script)[6:8] == [(7, 7), (7, 0)], "what was said of boundary 7 in there is said anew"
    assert {since for boundary, since in checks(script) if boundary > 7} == {0}


def test_a_loop_that_follows_one_that_has_stood_in_begins_anew(script: LoopScript) -> None:
    """Models of that loop may be equal by their initialisation alone."""
    script.run(
        SHOWS
        + """
for batch in range(7):
    step()
show()
for batch in range(3):
    step()
"""
    )
    assert [boundary for boundary, line in script.boundaries if line == 5] == [7]
    assert {since for boundary, since in checks(script) if boundary >= 7} == {7}


def test_another_model_begins_anew_behind_a_loop_that_has_stood_in(script: LoopScript) -> None:
    """It may lie where the one before lay, of which nothing is left."""
    script.run(
        SHOWS
        + """
import torch
model = torch.nn.Linear(2, 2)
for epoch in range(2):
    for batch in range(7):
        assert model is not None
        step()
    model = None
    show()
    model = torch.nn.Linear(2, 2)
"""
    )
    assert {since for boundary, since in checks(script) if boundary > 7} == {7}


def test_a_model_that_is_gone_is_no_other_one_even_in_its_place() -> None:
    model = torch.nn.Linear(2, 2)
    models = replica_checks._models(take({"model": model}, ModuleTrees()))
    assert replica_checks._are_the_same(models, models)
    del model
    gc.collect()
    assert models[0][1]() is None
    assert not replica_checks._are_the_same(models, models)


def test_models_are_known_in_the_order_of_their_nodes() -> None:
    models = {name: torch.nn.Linear(2, 2) for name in ("z", "a", "m")}
    state = take({"kept": [models["m"]], **models}, ModuleTrees())
    nodes = [node.obj for node in state.nodes if node.kind is Kind.MODULE]
    assert len(nodes) == 3
    assert [(number, model()) for number, model in replica_checks._models(state)] == list(enumerate(nodes))


def test_two_heads_with_one_number_have_names_of_their_own(script: LoopScript) -> None:
    """Between them lies what follows the inner loop, such as an average of the weights."""
    script.run("""
        for epoch in range(4):
            for phase in range(3):
                if phase == 1:
                    step()
    """)
    sent: list[Any] = script.sent
    told = [c.place for c in sent if isinstance(c, ReplicaCheck) and c.boundary == 2]
    assert len(told) == len(set(told)) == 2


def test_a_head_has_one_name_however_many_iterations_a_rank_has_gone_past_before(script: LoopScript) -> None:
    script.run("""
        for batch in range(9):
            if batch != 2:
                step()
    """)
    sent: list[Any] = script.sent
    assert len({c.place for c in sent if isinstance(c, ReplicaCheck) and c.boundary > 0}) == 1


def test_a_loop_tells_by_which_names_its_tensors_were_told_of_in_the_one_before(script: LoopScript) -> None:
    script.run("""
        import torch
        model = torch.nn.Linear(2, 2)
        for batch in range(3):
            step()
        print(model)
        made = torch.nn.Linear(3, 3)
        models = [made, model]
        del made, model
        for batch in range(3):
            step()
        print(models)
    """)
    told: list[Any] = [c for c in script.sent if isinstance(c, ReplicaCheck)]
    begins = [c for c in told if c.boundary == c.since > 0]
    assert [(c.boundary, c.since) for c in begins] == [(3, 3)]
    renamed = {f"module1.{name}": f"module0.{name}" for name in ("weight", "bias")}
    assert begins[0].renamed == renamed
    assert begins[0].fresh == ("module0.weight", "module0.bias")


def test_ranks_are_compared_once_more_when_a_large_value_is_gone(script: LoopScript) -> None:
    """They may have differed in it alone. Where that comes often, comparisons get rarer."""
    script.run("""
        import torch
        last = None
        for batch in range(60):
            seen = last is not None and last.sum()
            last = torch.zeros(20_000 if batch in (20, 21, 22, 40, 44) else 10)
            step()
    """)
    told: list[Any] = [c for c in script.sent if isinstance(c, ReplicaCheck) and c.boundary > 17]
    found = [(c.boundary, [path for path in c.digests if path.startswith("value.")]) for c in told]
    assert found == [(22, ["value.the_script.last"]), (24, []), (32, []), (33, [])]
