from __future__ import annotations

import pickle
import pickletools
from typing import Any

import torch
from support.host_state import journal, take

from torchrelay.shim.capture.records import encode
from torchrelay.shim.capture.values.kinds import Kind


class Holder:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def content_of(namespace: dict[str, Any]) -> Any:
    return encode.decode(encode.encode(take(namespace)))[0].content


def test_values_are_written_by_what_they_are() -> None:
    shared = [1]
    content = content_of({"plain": 1.5, "shared": shared, "pair": (2, shared), "lock": Holder(f=len)})
    assert content["plain"] == 1.5
    assert content["shared"] == (encode.REF, 2)
    assert content["pair"] == (encode.TUPLE, None, [2, (encode.REF, 2)])


def test_functions_are_written_by_name_and_what_has_none_only_as_what_it_is() -> None:
    nodes = encode.decode(encode.encode(take({"holder": Holder(act=torch.relu, make=lambda: 1)})))
    (holder,) = [node for node in nodes if node.kind is Kind.ATTRS]
    assert holder.content["act"] == (encode.NAMED, pickle.dumps(torch.relu))
    assert holder.content["make"][:2] == (encode.OPAQUE, "function")


def test_a_class_that_pickle_cannot_find_is_not_named() -> None:
    class Local:
        def __init__(self) -> None:
            self.count = 1

    nodes = encode.decode(encode.encode(take({"local": Local(), "known": Holder(a=1)})))
    assert [node.cls for node in nodes if node.kind is Kind.ATTRS] == [None, Holder]


def test_a_journal_holds_no_parameters_and_no_large_tensors() -> None:
    model = torch.nn.Linear(200, 200)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 200)).sum().backward()
    optimizer.step()
    by_parameter = dict.fromkeys(model.parameters(), 1)
    data = journal({"model": model, "optimizer": optimizer, "cache": torch.ones(100_000), "scale": by_parameter})
    assert len(data) < 20_000
    names = {str(argument) for _, argument, _ in pickletools.genops(data)}
    assert not any("_rebuild_tensor" in name or "_rebuild_parameter" in name for name in names)


def test_what_is_written_is_read_again() -> None:
    nodes = encode.encode(take({"a": [1, {"b": {1, 2}}]}))
    assert encode.decode(pickle.loads(pickle.dumps(nodes))) == encode.decode(nodes)
    assert all(type(node.kind) is Kind for node in encode.decode(nodes))
