"""kubectl, for end-to-end tests."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
CALL_S = 60.0


class Kubectl:
    """Raises AssertionError with what kubectl has said."""

    def __call__(self, *arguments: str, stdin: str | None = None) -> str:
        done = subprocess.run(
            ["kubectl", *arguments], input=stdin, capture_output=True, text=True, timeout=CALL_S, check=False
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}{done.stdout}"
        return done.stdout

    def get(self, *arguments: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("get", *arguments, "--output=json"))
        return found

    def items(self, *arguments: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.get(*arguments)["items"]
        return found

    def apply(self, *manifests: dict[str, Any]) -> None:
        self("apply", "--filename=-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)}))

    def create(self, *manifests: dict[str, Any]) -> None:
        self("create", "--filename=-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)}))


def wait_for(what: str, look: Callable[[], T | None], within_s: float, tell: Callable[[], str] = lambda: "") -> T:
    """What `look` finds first. Raises AssertionError, with what `tell` says, when the time is over."""
    until_s = time.monotonic() + within_s
    while (found := look()) is None:
        assert time.monotonic() < until_s, f"{what} did not come within {within_s:.0f} s\n{tell()}"
        time.sleep(0.2)
    return found
