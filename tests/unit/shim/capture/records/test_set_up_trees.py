"""Modules in the journals of a rank that has been taken over: training has made some before its journal of the set-up."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from support.host_state import no_saves, take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.models import module_parts
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import compare, encode
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.join.put_state import put_state
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
        tracker=SimpleNamespace(stack=[]),
        draws=SimpleNamespace(made_generators=set()),
        trees=ModuleTrees(),
    )
    nothing: Any = None
    put_state(engine, trees, journal, nothing, {})
    return cast("set[int]", engine.trees.rebound)


def test_a_module_that_training_made_before_this_process_took_over_is_made_again() -> None:
    source: dict[str, Any] = {"metrics": {"loss": Mean()}}
    trees = ModuleTrees()
    set_up = encode.begin_set_up(take(source, trees))
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
    set_up = encode.begin_set_up(take(source, trees))
    source["model"].memory["seen"] = 2
    source["model"].mean.add_(1)
    enter(target, set_up, encode.encode(take(source, trees)))
    model = target["model"]
    assert (model.memory, model.names, model.layer.calls) == ({"seen": 2}, ["a"], 7)
    assert torch.equal(model.mean, torch.full((2,), 2.0))


def test_plain_values_are_in_the_journal_of_the_set_up_alone() -> None:
    source, trees = {"model": Body()}, ModuleTrees()
    set_up = encode.begin_set_up(take(source, trees))
    assert encode.tree_of(set_up, 0)[2]["", "size"] == (2, (3,))
    (node,) = [n for n in encode.decode(encode.encode(take(source, trees))) if n.kind is Kind.MODULE]
    assert node.content == (0, None, {}, {}, None, {}, {}, {})


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
    trees = encode.begin_set_up(take(source, ModuleTrees()))
    written = payload.dump(payload.SetUpJournal("site", 1, (), trees))
    monkeypatch.delitem(sys.modules, "kinds_of_adapters")
    found = payload.load(written, payload.SetUpJournal)
    assert "kinds_of_adapters" not in sys.modules
    assert encode.tree_of(found.trees, 0)[2]["", "kind"].name == "LORA"
    assert "kinds_of_adapters" in sys.modules


def test_a_model_into_which_training_puts_other_modules_is_told() -> None:
    source, trees = {"loss": torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.ReLU())}, ModuleTrees()
    encode.begin_set_up(take(source, trees))
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
    set_up = encode.begin_set_up(take(source, trees))
    source["loss"].model = source["wrapped"]
    state = take(source, trees)
    wrapped, model = target["wrapped"], target["model"]
    tree = trees.tree(source["loss"])
    assert not module_parts.made_by_training(encode.Encoder(state), tree, state.index[id(tree.root)])
    rebound = enter(target, set_up, encode.encode(state))
    assert target["loss"].model is wrapped
    assert wrapped.module is model
    assert [*target["loss"]._modules] == ["scale", "model"]
    assert rebound == {id(target["loss"])}


def test_a_process_that_bound_modules_so_does_not_take_them_for_what_set_up_makes() -> None:
    source, target, trees = trainer(), trainer(), ModuleTrees()
    set_up = encode.begin_set_up(take(source, trees))
    source["loss"].model = source["wrapped"]
    own = ModuleTrees()
    own.rebound = enter(target, set_up, encode.encode(take(source, trees)))
    of_joiner = encode.begin_set_up(take(target, own))
    third = trainer()
    enter(third, of_joiner, encode.encode(take(target, own)))
    assert third["loss"].model is third["wrapped"]


def test_parts_of_another_model_and_an_exchange_within_one_are_the_same_in_another_process() -> None:
    def made() -> dict[str, Any]:
        return {"heads": torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(3)]), "net": Loss(torch.nn.ReLU())}

    source, target, trees = made(), made(), ModuleTrees()
    set_up = encode.begin_set_up(take(source, trees))
    source["net"].model = source["heads"][1]
    source["net"].again = source["net"].scale
    del source["heads"][2]
    enter(target, set_up, encode.encode(take(source, trees)))
    assert target["net"].model is target["heads"][1]
    assert target["net"].again is target["net"].scale
    assert len(target["heads"]) == 2


def test_a_module_that_stands_nowhere_else_is_told_and_refused() -> None:
    source, target, trees = trainer(), trainer(), ModuleTrees()
    set_up = encode.begin_set_up(take(source, trees))
    source["loss"].scale = torch.nn.Bilinear(1, 1, 1)
    state = take(source, trees)
    tree = trees.tree(source["loss"])
    assert module_parts.made_by_training(encode.Encoder(state), tree, state.index[id(tree.root)]) == ["scale"]
    with pytest.raises(StateMismatchError, match=r"scale is a Linear here, and was something else"):
        enter(target, set_up, encode.encode(state))


def test_modules_that_are_bound_elsewhere_are_a_difference() -> None:
    source, other = trainer(), trainer()
    source["loss"].model = source["wrapped"]
    written = [encode.decode(encode.encode_whole(take(space))) for space in (source, other)]
    found = [str(difference) for difference in compare.differences(*written)]
    assert "script.loss.model was a Wrapper and is another object" in found
