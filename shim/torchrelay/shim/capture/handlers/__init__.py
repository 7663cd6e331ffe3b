"""All kinds of state, by kind: how each is captured, compared, put back, written down and made again.

Within `capture` only `walks` and `records` may import it.
"""

from __future__ import annotations

from collections.abc import Callable

from torchrelay.shim.capture.handlers import (
    arrays,
    caches,
    composites,
    containers,
    data,
    definitions,
    files,
    generators,
    groups,
    models,
    objects,
    optimizers,
    process_wide,
    queues,
    random_state,
    settings,
    tensors,
    values,
    variables,
)
from torchrelay.shim.capture.handlers.handler import Handler
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.host_state import StateNode
from torchrelay.shim.capture.values.kinds import Kind

_FAMILIES = (
    arrays,
    caches,
    composites,
    containers,
    data,
    definitions,
    files,
    generators,
    groups,
    models,
    objects,
    optimizers,
    process_wide,
    queues,
    random_state,
    settings,
    tensors,
    values,
    variables,
)

HANDLERS: dict[Kind, Handler] = {handler.kind: handler for family in _FAMILIES for handler in family.HANDLERS}
SAME: dict[Kind, Callable[[ModuleTrees, StateNode], bool]] = {
    k: h.same for k, h in HANDLERS.items() if h.same is not None
}
RENEWED: dict[Kind, Callable[[ModuleTrees, StateNode], StateNode | None]] = {
    k: h.renewed for k, h in HANDLERS.items() if h.renewed is not None
}
COMES_AND_GOES = frozenset(k for k, h in HANDLERS.items() if h.comes_and_goes)
