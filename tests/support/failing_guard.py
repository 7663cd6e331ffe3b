"""A guard that lets nothing pass: what is wrong with the shim fails the test."""

from __future__ import annotations

from typing import Any

from torchrelay.shim.script.guard import Guard


class _FailsClosed:
    def fails_closed(self, error: Exception) -> bool:
        return True

    def raises(self, error: Exception) -> None:
        pass

    def give_up(self, error: Exception) -> None:
        raise AssertionError("nothing passes") from error


_engine: Any = _FailsClosed()
FAILING = Guard(lambda: _engine)
