"""Host state of plain namespaces, as if they were the globals of a script's module: taken, put back, carried over."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from torchrelay.shim.adapters.parallel.module_hooks import MadeHooks
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import encode
from torchrelay.shim.capture.records.compare import Comparison
from torchrelay.shim.capture.records.difference import Difference
from torchrelay.shim.capture.records.encode import EncodedNode
from torchrelay.shim.capture.records.rebuild import StateRebuild
from torchrelay.shim.capture.state.filled_queues import FilledQueues
from torchrelay.shim.capture.state.host_state import HostState
from torchrelay.shim.capture.state.process_settings import ProcessSettings
from torchrelay.shim.capture.walks.walk import Walk
from torchrelay.shim.script.save_future import SaveId


def take(
    namespace: dict[str, Any], trees: ModuleTrees | None = None, *, at_gate_of: HostState | None = None
) -> HostState:
    """`at_gate_of`: the state at the head of a step whose gate this is."""
    return Walk(trees or ModuleTrees(), at_gate_of).run([], {"script": namespace})


def journal(namespace: dict[str, Any], trees: ModuleTrees | None = None) -> bytes:
    return pickle.dumps(encode.encode(take(namespace, trees)))


def no_saves(save: SaveId) -> Any:
    raise AssertionError(f"nobody has begun {save}")


def carry(
    source: dict[str, Any],
    target: dict[str, Any],
    trees: ModuleTrees | None = None,
    *,
    made_hooks: MadeHooks | None = None,
) -> StateRebuild:
    """What a joiner does that has built `target` where the lost rank had `source`. `trees`: what that one had walked before.

    `made_hooks`: of the joiner, where it is put several times.
    """
    own = {"settings": ProcessSettings(), "queues": FilledQueues(), "made_hooks": made_hooks}
    rebuild = StateRebuild([], {"script": target}, no_saves, **own)
    rebuild.resolve(encode.decode(pickle.loads(journal(source, trees))))
    rebuild.fill()
    return rebuild


def differences(then: Sequence[EncodedNode], now: Sequence[EncodedNode], *more: Any, **named: Any) -> list[Difference]:
    """`more`, `named`: what else `Comparison` is given."""
    return Comparison(then, now, *more, **named).run()
