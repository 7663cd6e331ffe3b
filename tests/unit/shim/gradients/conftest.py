from __future__ import annotations

import pytest

from torchrelay.shim.adapters import dynamo


@pytest.fixture(autouse=True)
def nothing_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests in this process may have compiled something."""
    monkeypatch.setattr(dynamo, "compilations", lambda: 0)
