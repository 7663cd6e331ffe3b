"""Modules in the journals of a rank that has been taken over: training has made some before its journal of the set-up."""

from __future__ import annotations

import copy
import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from support.host_state import differences, no_saves, take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.models import module_parts
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import encode, set_up_trees
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.join.put_state import put_state
from torchrelay.shim.join.recorded import RecordedPlace
from torchrelay.shim.journal import payload


class Mean(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.total, self.count, self.window = torch.zeros(1), 0, [0.0]


class Body(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.size, self.memory = torch.nn.Linear(2, 2), (2, (3,)), None


def enter(target: dict[str, Any], trees: tuple[Any, ...], journal: list[bytes]) -> set[int]:
    """Returns the roots in which modules were bound."""
    modules = SimpleNamespace(namespaces=lambda: {"script": target})
    engine: Any = SimpleNamespace(
        writer=SimpleNamespace(modules=modules),
        saves=SimpleNamespace(future=no_saves),
        opens=open,
        tracker=SimpleNamespace(stack=[]),
        draws=SimpleNamespace(made_generators=set()),
        trees=ModuleTrees(),
    )
    nothing: Any = None
    put_state(engine, trees, RecordedPlace(journal, {}), nothing)
    return cast("set[int]", engine.trees.rebound)


def lacking(space: dict[str, Any], trees: ModuleTrees) -> list[str]:
    """Of all its models."""
    state, found = take(space, trees), []
    for number, node in enumerate(state.nodes):
        if node.kind is Kind.MODULE:
            content = node.content
            found += module_parts.cannot_be_made(encode.Encoder(state), content.tree, content.values, number)
    return found


def test_a_module_that_training_made_before_this_process_took_over_is_made_again() -> None:
    source: dict[str, Any] = {"metrics": {"loss": Mean()}}
    trees = ModuleTrees()
    set_up = set_up_trees.begin_set_up(take(source, trees))
    made = source["metrics"]["loss"]
    made.count, made.window = 3, [1.0, 2.0]
    made.total += 1.5
    target: dict[str, Any] = {"metrics": {}}
    enter(target, set_up, encode.encode(take(source, trees)))
    found = target["metrics"]["loss"]
    assert type(found) is Mean
    assert (found.total.item(), found.count, found.window, found.training) == (1.5, 3, [1.0, 2.0], True)


def test_what_training_put_into_a_model_before_this_process_took_over_is_put_there_again() -> None:
    source: dict[str, Any] = {"model": Body()}
    target: dict[str, Any] = {"model": Body()}
    source["model"].memory, source["model"].layer.calls = {"seen": 1}, 7
    source["model"].mean, source["model"].names = torch.ones(2), ["a"]
    trees = ModuleTrees()
    set_up = set_up_trees.begin_set_up(take(source, trees))
    source["model"].memory["seen"] = 2
    source["model"].mean.add_(1)
    enter(target, set_up, encode.encode(take(source, trees)))
    model = target["model"]
    assert (model.memory, model.names, model.layer.calls) == ({"seen": 2}, ["a"], 7)
    assert torch.equal(model.mean, torch.full((2,), 2.0))


def test_plain_values_are_in_the_journal_of_the_set_up_alone() -> None:
    source, trees = {"model": Body()}, ModuleTrees()
    set_up = set_up_trees.begin_set_up(take(source, trees))
    assert set_up_trees.tree_of(set_up, 0)[2]["", "size"] == (2, (3,))
    (node,) = [n for n in encode.decode(encode.encode(take(source, trees))) if n.kind is Kind.MODULE]
    assert node.content == (0, None, {}, {}, None, {}, {}, {}, None, {})


def test_what_a_lost_rank_recorded_of_loops_that_still_run_keeps_its_meaning() -> None:
    """The process in its place counts its trees from there on: one that training has changed is none of them."""
    source, trees = {"first": Body(), "model": torch.nn.Linear(2, 2)}, ModuleTrees()
    before = set_up_trees.begin_set_up(take(source, trees))
    trees.rebound = {id(source["first"])}
    set_up = set_up_trees.begin_set_up(take(source, trees.anew()), before)
    assert set_up[: len(before)] == before
    assert len(set_up) == len(before) + 1
    assert set_up_trees.tree_of(set_up, 1) == set_up_trees.tree_of(set_up, 2) != set_up_trees.tree_of(set_up, 0)


def test_a_module_with_parts_is_not_taken_for_one_that_had_none() -> None:
    target: dict[str, Any] = {"metric": Mean()}
    target["metric"].part = torch.nn.ReLU()
    with pytest.raises(StateMismatchError, match="Mean has modules here and had none"):
        enter(target, (), encode.encode(take({"metric": Mean()})))


def test_the_journal_of_the_set_up_is_read_before_the_modules_of_what_trees_hold_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kinds_of_adapters.py").write_text("import enum\nKind = enum.Enum('Kind', 'LORA')\n")
    monkeypatch.syspath_prepend(tmp_path)
    source = {"model": torch.nn.Sequential(torch.nn.Linear(1, 1))}
    source["model"].kind = importlib.import_module("kinds_of_adapters").Kind.LORA
    trees = set_up_trees.begin_set_up(take(source, ModuleTrees()))
    written = payload.dump(payload.SetUpJournal("site", 1, (), trees))
    monkeypatch.delitem(sys.modules, "kinds_of_adapters")
    found = payload.load(written, payload.SetUpJournal)
    assert "kinds_of_adapters" not in sys.modules
    assert set_up_trees.tree_of(found.trees, 0)[2]["", "kind"].name == "LORA"
    assert "kinds_of_adapters" in sys.modules


def test_a_model_into_which_training_puts_other_modules_is_told() -> None:
    source, trees = {"loss": torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU())}, ModuleTrees()
    set_up_trees.begin_set_up(take(source, trees))
    take(source, trees)
    assert not trees.changed
    before = source["loss"][0]
    source["loss"][0] = torch.nn.Sequential(before)  # as a trainer wraps a model inside of its loss
    take(source, trees)
    assert [tree.root for tree in trees.changed.values()] == [source["loss"]]
    source["loss"][0] = before
    take(source, trees)
    assert not trees.changed


class Loss(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.scale = torch.nn.Linear(1, 1)
        self.model = model


class Wrapper(torch.nn.Module):
    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module


def trainer() -> dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    return {"model": model, "wrapped": Wrapper(model), "loss": Loss(model)}


def test_a_wrapper_that_training_puts_in_place_of_a_model_is_put_there_in_another_process() -> None:
    source, target, trees = trainer(), trainer(), ModuleTrees()
    set_up = set_up_trees.begin_set_up(take(source, trees))
    source["loss"].model = source["wrapped"]
    state = take(source, trees)
    wrapped, model = target["wrapped"], target["model"]
    assert lacking(source, trees) == []
    rebound = enter(target, set_up, encode.encode(state))
    assert target["loss"].model is wrapped
    assert wrapped.module is model
    assert [*target["loss"]._modules] == ["scale", "model"]
    assert rebound == {id(target["loss"])}


def test_a_process_that_bound_modules_so_does_not_take_them_for_what_set_up_makes() -> None:
    source, target, trees = trainer(), trainer(), ModuleTrees()
    set_up = set_up_trees.begin_set_up(take(source, trees))
    source["loss"].model = source["wrapped"]
    own = ModuleTrees()
    own.rebound = enter(target, set_up, encode.encode(take(source, trees)))
    of_joiner = set_up_trees.begin_set_up(take(target, own))
    third = trainer()
    enter(third, of_joiner, encode.encode(take(target, own)))
    assert third["loss"].model is third["wrapped"]


def test_parts_of_another_model_and_an_exchange_within_one_are_the_same_in_another_process() -> None:
    def made() -> dict[str, Any]:
        return {"heads": torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(3)]), "net": Loss(torch.nn.ReLU())}

    source, target, trees = made(), made(), ModuleTrees()
    set_up = set_up_trees.begin_set_up(take(source, trees))
    source["net"].model = source["heads"][1]
    source["net"].again = source["net"].scale
    del source["heads"][2]
    enter(target, set_up, encode.encode(take(source, trees)))
    assert target["net"].model is target["heads"][1]
    assert target["net"].again is target["net"].scale
    assert len(target["heads"]) == 2


class Block(torch.nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.BatchNorm1d(size))
        self.register_buffer("seen", torch.zeros(2), persistent=False)
        self.activation, self.size, self.history = torch.nn.functional.gelu, size, [size]


def test_a_module_that_training_has_made_is_made_in_another_process_and_in_the_one_behind_it() -> None:
    source, target, trees = trainer(), trainer(), ModuleTrees()
    set_up = set_up_trees.begin_set_up(take(source, trees))
    source["loss"].scale, source["model"][1] = torch.nn.Bilinear(1, 2, 1), Block(3)
    source["model"].append(torch.nn.Dropout(0.25))
    made = source["model"][1]
    made.layers[1].running_mean.fill_(2.0)
    made.seen.fill_(3.0)
    made.history.append(4)
    made.layers[0].bias.requires_grad_(False)
    source["model"].eval()
    assert lacking(source, trees) == []
    own = ModuleTrees()
    own.rebound = enter(target, set_up, encode.encode(take(source, trees)))
    of_joiner = set_up_trees.begin_set_up(take(target, own))
    third = trainer()
    enter(third, of_joiner, encode.encode(take(target, own)))
    for space in (target, third):
        found = space["model"][1]
        assert type(space["loss"].scale) is torch.nn.Bilinear
        assert [tuple(p.shape) for p in space["loss"].scale.parameters()] == [(1, 1, 2), (1,)]
        assert type(found) is Block
        assert found.activation is torch.nn.functional.gelu
        assert (found.size, found.history, found.training) == (3, [3, 4], False)
        assert found.layers[0].weight.shape == (3, 3)
        assert [p.requires_grad for p in found.parameters()] == [True, False, True, True]
        assert found.layers[1].running_mean.tolist() == [2.0] * 3
        assert found.seen.tolist() == [3.0, 3.0]
        assert "seen" not in found.state_dict()
        assert (type(space["model"][2]), space["model"][2].p) == (torch.nn.Dropout, 0.25)
        assert space["wrapped"].module is space["model"]


def test_a_model_that_training_has_made_is_made_in_another_process_and_in_the_one_behind_it() -> None:
    def made() -> dict[str, Any]:
        return {"model": torch.nn.Sequential(Block(2), torch.nn.Linear(2, 1)), "best": None}

    source, target, trees = made(), made(), ModuleTrees()
    set_up = set_up_trees.begin_set_up(take(source, trees))
    source["model"][0].seen.fill_(1.0)
    source["best"] = copy.deepcopy(source["model"]).eval(), 0.5
    source["model"][0].seen.fill_(2.0)
    assert lacking(source, trees) == []
    own = ModuleTrees()
    own.rebound = enter(target, set_up, encode.encode(take(source, trees)))
    of_joiner = set_up_trees.begin_set_up(take(target, own))
    third = made()
    enter(third, of_joiner, encode.encode(take(target, own)))
    for space in (target, third):
        best, score = space["best"]
        assert (score, best is space["model"], type(best[0])) == (0.5, False, Block)
        assert (best[0].activation, best[0].training) == (torch.nn.functional.gelu, False)
        assert (best[0].seen.tolist(), space["model"][0].seen.tolist()) == ([1.0, 1.0], [2.0, 2.0])
        assert [p.shape for p in best.parameters()] == [p.shape for p in space["model"].parameters()]


@pytest.mark.parametrize(("make", "lacks"), [(lambda: hooked(), ""), (lambda: with_opaque(), "view")])
def test_a_model_of_training_that_cannot_be_made_is_told(make: Any, lacks: str) -> None:
    source, trees = {"best": None}, ModuleTrees()
    set_up_trees.begin_set_up(take(source, trees))
    source["best"] = make()
    assert lacking(source, trees) == [lacks]


def hooked() -> torch.nn.Module:
    layer = torch.nn.Linear(1, 1)
    layer.register_forward_hook(eval("lambda *_: None"))
    return layer


def with_opaque() -> torch.nn.Module:
    layer: Any = torch.nn.Linear(1, 1)
    layer.view = memoryview(b"a")
    return layer  # type: ignore[no-any-return]  # it is one


class Local:
    """Where no class is found by its name."""

    @staticmethod
    def made() -> torch.nn.Module:
        class Inner(torch.nn.Linear):
            pass

        return Inner(1, 1)


@pytest.mark.parametrize(
    ("make", "lacks", "refused"),
    [
        (hooked, "scale", "a hook of scale cannot be made again"),
        (with_opaque, "scale.view", "Linear was made by training, and its view cannot be made again"),
        (Local.made, "scale", "the model had|was something else|has no module|modules here"),
    ],
)
def test_a_module_that_cannot_be_made_is_told_and_refused(make: Any, lacks: str, refused: str) -> None:
    source, target, trees = trainer(), trainer(), ModuleTrees()
    del source["loss"].scale, target["loss"].scale
    set_up = set_up_trees.begin_set_up(take(source, trees))
    source["loss"].scale = make()
    assert lacking(source, trees) == [lacks]
    with pytest.raises(StateMismatchError, match=refused):
        enter(target, set_up, encode.encode(take(source, trees)))


def test_what_a_process_has_made_on_its_way_in_is_not_its_set_ups() -> None:
    """A loop around the training loop adds a layer in each of its iterations, in a new process as well but for those before it."""
    source, target, trees = trainer(), trainer(), ModuleTrees()
    set_up = set_up_trees.begin_set_up(take(source, trees))
    for space in (source, target):
        space["model"].append(torch.nn.Linear(2, 2))
    own = ModuleTrees()
    own.rebound = enter(target, set_up, encode.encode(take(source, trees)))
    of_joiner = set_up_trees.begin_set_up(take(target, own))
    target["model"].append(torch.nn.Linear(2, 2))
    third = trainer()
    enter(third, of_joiner, encode.encode(take(target, own)))
    assert len(third["model"]) == 4


def test_what_a_first_training_loop_has_put_into_a_model_is_not_the_set_up_of_the_next_one() -> None:
    source, target, trees = trainer(), trainer(), ModuleTrees()
    set_up_trees.begin_set_up(take(source, trees))
    source["model"].append(torch.nn.Linear(2, 2))
    take(source, trees)
    trees = trees.anew()
    set_up = set_up_trees.begin_set_up(take(source, trees))
    enter(target, set_up, encode.encode(take(source, trees)))
    assert len(target["model"]) == 3


def test_modules_that_are_bound_elsewhere_are_a_difference() -> None:
    source, other = trainer(), trainer()
    source["loss"].model = source["wrapped"]
    written = [encode.decode(encode.encode_whole(take(space))) for space in (source, other)]
    found = [str(difference) for difference in differences(*written)]
    assert "script.loss.model was a Wrapper and is another object" in found
