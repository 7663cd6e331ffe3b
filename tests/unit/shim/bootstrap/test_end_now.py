"""The controller tells a process to end."""

from __future__ import annotations

import pytest

from torchrelay.protocol.messages import EndNow
from torchrelay.shim.agent_link import announced_exit
from torchrelay.shim.agent_link.config import ShimConfig
from torchrelay.shim.bootstrap import start_over
from torchrelay.shim.join.spare import Spare
from torchrelay.shim.runtime import Runtime


@pytest.mark.parametrize(("again", "how"), [(False, "leaves"), (True, "begins anew")])
def test_it_leaves_or_begins_anew_in_its_place(monkeypatch: pytest.MonkeyPatch, again: bool, how: str) -> None:
    done: list[tuple[str, int]] = []
    monkeypatch.setattr(announced_exit, "leave", lambda code: done.append(("leaves", code)))
    monkeypatch.setattr(start_over, "start_over", lambda code, log: done.append(("begins anew", code)))
    runtime = object.__new__(Runtime)  # one that has begun would speak with an agent
    runtime.config = ShimConfig("", "", "", "", False, "", (), ())
    runtime._spare = Spare(lambda report: None)
    runtime._handle(EndNow(77, again=again))
    assert done == [(how, 77)]
