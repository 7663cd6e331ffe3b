"""A tree of modules with TorchScript in it is captured, put back, and told to another process like any other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.scripted_modules import Counting, scripted

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.models import spaces
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.values.small import take


def model() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 3), scripted(Counting()))


def own(root: Any) -> Any:
    return root._modules["1"]


def contents(root: Any) -> list[Any]:
    part = own(root)
    tensors = [take(t) for t in (*part.parameters(), *part.buffers(), part.extra)]
    return [*tensors, part.count, part.seen, part.training, part._modules["inner"].training]


def test_what_its_forward_changes_is_put_back() -> None:
    root = model()
    tree = ModuleTrees().tree(root)
    root(torch.randn(4, 3))
    content, before, mean = tree.take(), contents(root), own(root).mean
    root(torch.randn(4, 3))
    root.eval()
    own(root).extra = torch.zeros(2)
    own(root).weight = torch.nn.Parameter(torch.zeros(3))
    assert contents(root) != before
    tree.take()
    tree.undo(content)
    assert contents(root) == before
    assert own(root).mean is mean, "whoever holds the buffer must see it go on"


def test_what_has_not_changed_is_the_same_object_each_time() -> None:
    root = model()
    own(root).count = 1 << 40
    tree = ModuleTrees().tree(root)
    one, other = tree.take(), tree.take()
    assert other.changed(one) == []
    own(root).count = (1 << 40) + 1
    assert [tree.slots[place] for place in tree.take().changed(one)] == [("1", "count")]


def test_lists_are_told_by_value() -> None:
    fields = spaces.fields(own(model()))
    assert fields["seen"] == ("list", 0.0)
    fields["seen"] = ("list", 1.0, 2.0)
    assert fields["seen"] == ("list", 1.0, 2.0)
    root = model()
    spaces.fields(own(root))["seen"] = ("list", 3.0)
    assert own(root).seen == [3.0]


def test_what_is_put_into_its_python_object_later_is_taken_away_again() -> None:
    root = model()
    tree = ModuleTrees().tree(root)
    content = tree.take()
    own(root).note = "later"
    assert not tree.is_current()
    tree.undo(content)
    assert not hasattr(own(root), "note")


def test_modules_are_found_by_their_path() -> None:
    root = model()
    assert spaces.module_at(root, "1.inner") is own(root)._modules["inner"]
    with pytest.raises(AttributeError, match=r"no module 1\.other"):
        spaces.module_at(root, "1.other")


def test_what_is_compiled_has_its_names_for_good() -> None:
    space = spaces.tensors(own(model()), spaces.BUFFERS)
    assert [*space] == ["mean"]
    with pytest.raises(StateMismatchError, match="cannot be given other"):
        space["other"] = torch.zeros(1)
    with pytest.raises(StateMismatchError, match="mean of a module of TorchScript cannot be taken away"):
        del space["mean"]
    with pytest.raises(StateMismatchError, match="cannot be given inner"):
        spaces.parts(own(model()))["inner"] = torch.nn.ReLU()
