"""Process groups that the script makes, in place of torch's two functions for that."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.runtime.engine_maker import go_live, look_at_device

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine

_OTHER_GROUP = (
    "the script has made a default process group that has other ranks or another backend than the one before: "
    "no rank can be replaced from here on"
)
_NAMES_OF_EACH = 1_000_000
"""torch numbers groups from 0 again, and would find in the store what the members of the earlier ones have said there."""


class ScriptGroups:
    """Makes process groups. `make_first`: makes the first default group of a process with no engine.

    `rehearses`: this process is no rank's peer.
    """

    def __init__(
        self,
        engine: Callable[[], Engine | None],
        is_off: Callable[[], bool],
        make_first: Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any],
        *,
        rehearses: bool,
    ) -> None:
        self._engine = engine
        self._is_off = is_off
        self._make_first = make_first
        self._rehearses = rehearses
        self._backend = ""
        """Of the first default process group, once there is one."""
        self._others = 0
        """How many default process groups of other ranks were made."""

    def init_process_group(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._is_off():
            return original(*args, **kwargs)
        engine = self._engine()
        if engine is None:
            return self._init_first(original, args, kwargs)
        if self._backend:
            return self._init_again(engine, original, args, kwargs)
        return self._init_of_joiner(engine, original, args, kwargs)

    def _init_first(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        import torch.distributed as dist

        from torchrelay.shim.adapters.process_groups import process_group

        result = self._make_first(original, args, kwargs)
        if self._engine() is not None:
            self._backend = process_group.backend_name(dist.group.WORLD)
        return result

    def _init_of_joiner(
        self, engine: Engine, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        from torchrelay.shim.adapters.process_groups import process_group

        assert engine.new_groups is not None
        group = engine.new_groups.default_without_peers(original, args, kwargs, first=not self._rehearses)
        self._backend = process_group.backend_name(group)
        go_live(engine)
        if not self._rehearses:
            look_at_device(engine)

    def _init_again(
        self, engine: Engine, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Make the default process group anew, after it was destroyed."""
        import torch.distributed as dist

        from torchrelay.shim.adapters.process_groups import process_group

        new_groups = engine.new_groups
        if dist.is_initialized() or new_groups is None:
            return original(*args, **kwargs)
        if new_groups.has_same_ranks(args, kwargs):
            new_groups.make_default(original, *args, **kwargs)
            if process_group.backend_name(dist.group.WORLD) != self._backend:
                engine.give_up(UnsupportedError(_OTHER_GROUP))
            return None
        engine.give_up(UnsupportedError(_OTHER_GROUP))
        self._others += 1
        process_group.name_from(self._others * _NAMES_OF_EACH)
        engine.waiting(True)
        try:
            with engine.comms.breaking.connecting(engine.comms.now):
                return original(*args, **kwargs)
        finally:
            engine.waiting(False)

    def new_group(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        engine = self._engine()
        new_groups = engine.new_groups if engine is not None else None
        return (original if new_groups is None else functools.partial(new_groups.make, original))(*args, **kwargs)
