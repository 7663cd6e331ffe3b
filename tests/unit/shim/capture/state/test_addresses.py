"""What a script keeps by the `id` of its objects: a new process has the same under the ids that its own objects have."""

from __future__ import annotations

from typing import Any

import torch
from support.host_state import carry, differences, take

from torchrelay.shim.capture.records import encode
from torchrelay.shim.capture.state import addresses


class Agent:
    def __init__(self) -> None:
        self.score = 0


def a_script(*, score: int, seen: int) -> dict[str, Any]:
    """Two of these lie at other addresses, as in two processes."""
    model = torch.nn.Linear(3, 2)
    agents = [Agent(), Agent(), Agent()]
    return {
        "model": model,
        "agents": agents,
        "shadow": {id(p): torch.full_like(p, float(score)) for p in model.parameters()},
        "scores": {id(agent): score + place for place, agent in enumerate(agents)},
        "pairs": {(id(agents[0]), "wins"): score, (id(model), "steps"): score},
        "seen": {id(agent) for agent in agents[:seen]},
        "order": [id(model.bias), id(model.weight)],
        "last": id(agents[seen - 1]),
        "both": (id(agents[0]), seen),
        "of_class": {id(Agent): score},
    }


def test_what_is_kept_by_id_is_found_by_the_ids_of_a_new_process() -> None:
    source = a_script(score=7, seen=2)
    target = a_script(score=0, seen=1)
    model, agents = target["model"], target["agents"]
    own = dict(target["shadow"])
    carry(source, target)
    assert [*target["shadow"]] == [id(model.weight), id(model.bias)]
    assert all(target["shadow"][key] is tensor for key, tensor in own.items())
    assert target["scores"] == {id(agent): 7 + place for place, agent in enumerate(agents)}
    assert target["pairs"] == {(id(agents[0]), "wins"): 7, (id(model), "steps"): 7}
    assert target["seen"] == {id(agents[0]), id(agents[1])}
    assert target["order"] == [id(model.bias), id(model.weight)]
    assert target["last"] == id(agents[1])
    assert target["both"] == (id(agents[0]), 2)
    assert target["of_class"] == {id(Agent): 7}


def test_entries_of_training_come_under_the_id_of_the_object_that_was_made() -> None:
    made = Agent()
    target: dict[str, Any] = {"agents": [], "scores": {}}
    carry({"agents": [made], "scores": {id(made): 3}}, target)
    assert target["scores"] == {id(target["agents"][0]): 3}


def test_numbers_of_that_size_that_are_no_addresses_stay_as_they_are() -> None:
    number = (1 << 44) + 16
    assert addresses.may_be_one(number)
    target: dict[str, Any] = {"counts": {}, "seen": set(), "total": 0, "many": []}
    carry({"counts": {number: 1, "a": 2}, "seen": {number, 5}, "total": number, "many": [number, 3]}, target)
    assert target == {"counts": {number: 1, "a": 2}, "seen": {number, 5}, "total": number, "many": [number, 3]}


def test_two_processes_are_compared_by_what_lies_there() -> None:
    states = [encode.decode(encode.encode(take(a_script(score=7, seen=2)))) for _ in range(2)]
    assert differences(*states) == []
    other = a_script(score=7, seen=2)
    other["scores"] = dict(reversed(other["scores"].items()))
    found = differences(states[0], encode.decode(encode.encode(take(other))))
    assert any("scores" in difference.path for difference in found)


def test_a_number_is_written_anew_once_the_object_there_is_part_of_the_state() -> None:
    agent = Agent()
    source: dict[str, Any] = {"scores": {id(agent): 1}, "last": None}
    state = take(source)
    encode.encode(state)
    assert state.fleeting
