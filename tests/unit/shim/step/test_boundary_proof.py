"""A rank that has gone back looks whether it is where it says it is, and does not go on if it is not."""

from __future__ import annotations

import textwrap
import threading
from typing import Any

import pytest
import torch
from support.loop_script import LoopScript

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.models.modules import ModuleTree
from torchrelay.shim.capture.records import undo
from torchrelay.shim.capture.state.host_state import StateNode
from torchrelay.shim.capture.values.kinds import Kind

METERS = """
    class Meter:
        total = 0
    meters = {"loss": Meter()}
    def train():
        window = []
        for batch in range(4):
            window.append(batch)
            meters["loss"].total += 1
            if batch == 2:
                fail()
            step()
    train()
"""

CENTER = """
    import torch
    class Loss(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("center", torch.zeros(8))
    loss = Loss()
    for batch in range(4):
        loss.center = loss.center * 0.9 + batch
        if batch == 2:
            fail()
        step()
"""


def run(script: LoopScript, source: str) -> dict[str, Any]:
    """With its source on disk, where lines are looked for."""
    (script.folder / "script.py").write_text(textwrap.dedent(source))
    script.failures = 1
    return script.run(source)


def leave_out(monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    """As if nobody had thought of putting objects of that kind back."""
    put_back = undo.undo_node

    def partly(node: StateNode) -> None:
        if node.kind is not kind:
            put_back(node)

    monkeypatch.setattr(undo, "undo_node", partly)


def test_a_rank_that_is_back_goes_on(script: LoopScript) -> None:
    names = run(script, METERS)
    assert script.stood == ["body"]
    assert names["meters"]["loss"].total == 4


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        (Kind.ATTRS, r"the_script\.meters\['loss'\]\.total was 2 and is 3"),
        (Kind.LIST, "window was of 2 entries and is of 3"),
    ],
)
def test_what_was_not_put_back_is_named_with_its_line(
    kind: Kind, path: str, script: LoopScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out(monkeypatch, kind)
    with pytest.raises(StateMismatchError, match=rf"at boundary 2: {path} \(bound at \S+/script.py:\d+\)"):
        run(script, METERS)


def test_what_another_thread_writes_meanwhile_is_put_back_once_more(
    script: LoopScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back = undo.undo_node
    written = []

    def beside_a_thread(node: StateNode) -> None:
        if type(node.obj).__name__ == "Meter" and not written:
            written.append(node)
        else:
            put_back(node)

    monkeypatch.setattr(undo, "undo_node", beside_a_thread)
    end = threading.Event()
    thread = threading.Thread(target=end.wait, daemon=True)
    thread.start()
    names = run(script, METERS)
    end.set()
    thread.join()
    assert written
    assert names["meters"]["loss"].total == 4


def test_a_buffer_that_the_step_has_bound_anew_is_seen_where_nothing_binds_the_old_one(
    script: LoopScript, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its old tensor is put back, and the module has another one."""

    def values_alone(tree: ModuleTree, content: Any) -> None:
        for name, value in content.buffers.items():
            undo.small.put(value, tree.small_buffers[name])

    monkeypatch.setattr(ModuleTree, "undo", values_alone)
    with pytest.raises(StateMismatchError, match=r"the_script\.loss\.center was .* \(bound at \S+/script.py:9\)"):
        run(script, CENTER)


def test_a_generator_that_goes_on_from_elsewhere_is_seen(script: LoopScript, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchrelay.shim.step.going_back.rng.restore", lambda state: torch.rand(1))
    with pytest.raises(StateMismatchError, match="a random generator of the process"):
        run(script, METERS)
