"""What of the script's own the process holds beside variables: hooks that torch keeps for all, and what only loggers hold.

A new process has what its set-up registers. What training registers there is put back with a step, and no other process has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchrelay.shim.adapters import process_wide
from torchrelay.shim.capture.values import callables
from torchrelay.shim.capture.values.kinds import Kind, kind_of

Place = tuple[str, int]


class HeldByProcess:
    def __init__(self) -> None:
        self._loggers = process_wide.Loggers()

    def now(self) -> dict[Place, Any]:
        """Return what is held, by who holds it, and as which one there."""
        found: dict[Place, Any] = {}
        for holder, held in self._each():
            found[holder, sum(name == holder for name, _ in found)] = held
        return found

    def _each(self) -> Iterator[tuple[str, Any]]:
        for name, hooks in process_wide.hooks():
            yield from ((name, hook) for hook in hooks.values() if callables.is_users_hook(hook))
        for name, held in self._loggers.held():
            if kind_of(type(held)) is Kind.ATTRS and callables.is_users_class(type(held)):
                yield f"logger {name}", held

    def put_hooks(self, wanted: dict[Place, Any]) -> None:
        """Let the hooks of the script's own be these. Others stay, in front of them."""
        now = self.now()
        for name in dict.fromkeys(holder for holder, _ in (*wanted, *now) if not holder.startswith("logger ")):
            meant = [hook for (holder, _), hook in wanted.items() if holder == name]
            there = [hook for (holder, _), hook in now.items() if holder == name]
            if len(meant) == len(there) and all(a is b for a, b in zip(meant, there)):
                continue
            kept = dict(next((hooks for kept, hooks in process_wide.hooks() if kept == name), {}))
            others = {key: hook for key, hook in kept.items() if not callables.is_users_hook(hook)}
            numbers = {id(hook): key for key, hook in kept.items()}
            mine = ((numbers.get(id(hook)), hook) for hook in meant)
            put = {process_wide.next_number() if key is None else key: hook for key, hook in mine}
            process_wide.put_hooks(name, {**others, **put})
