"""Describe one kind of state: how it is captured, compared, put back, written down, and made again in another process.

Each file of `handlers` has the handlers of one family. The walk, the rewalk, `undo`, `encode` and `rebuild` know no kinds: they ask
the handler. The defaults are those of a kind without content of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.host_state import StateNode
from torchrelay.shim.capture.state.key_text import text_of
from torchrelay.shim.capture.state.parts import attributes
from torchrelay.shim.capture.values.kinds import IMPLIED, Kind, kind_of
from torchrelay.shim.capture.values.replay_point import ABSENT

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode, Encoder
    from torchrelay.shim.capture.records.rebuild import StateRebuild
    from torchrelay.shim.capture.walks.walk import Walk


def nothing(*_: Any) -> None:
    """Do nothing: the object goes back, or comes back, by itself."""


def encode_as_it_is(encoder: Encoder, node: StateNode) -> Any:
    return node.content


def encode_mapping(encoder: Encoder, node: StateNode) -> Any:
    return encoder.mapping(node.content)


def not_made(rebuild: StateRebuild, node: EncodedNode) -> Any:
    """Return ABSENT and name a lack: set-up makes such objects, and what training has made of them cannot be made again."""
    rebuild.lacks(node)
    return ABSENT


def made_for_one_use(rebuild: StateRebuild, node: EncodedNode) -> Any:
    """Return ABSENT: what is made for one use, such as an evaluation's loader, is made again for the next one."""
    rebuild.leaves(f"{node.kind.name.lower()} {text_of(node.key)}")
    return ABSENT


def of_same_class(node: EncodedNode, there: Any) -> bool:
    """Return whether the object of this process can stand for the recorded one."""
    kind = kind_of(type(there))
    cls = node.cls or IMPLIED.get(kind)
    return kind is node.kind and (cls is None or type(there) is cls)


def attribute(parent: Any, key: Any) -> Any:
    return attributes(parent).get(key, ABSENT)


@dataclass(frozen=True)
class Handler:
    kind: Kind
    capture: Callable[[Walk, Kind, Any, int, Any], None] | None = None
    """Adds a node for an object that the walk meets for the first time; None for what only a walk itself makes nodes of."""
    same: Callable[[ModuleTrees, StateNode], bool] | None = None
    """Whether the object of a node of an earlier walk is unchanged."""
    renewed: Callable[[ModuleTrees, StateNode], StateNode | None] | None = None
    """In place of `same`, for kinds that leave a trace beside their nodes: the node anew, or None if it is unchanged."""
    undo: Callable[[StateNode], None] = nothing
    """Puts the object back to the node's content, in the process that it was taken in."""
    encode: Callable[[Encoder, StateNode], Any] = encode_as_it_is
    """The content as plain data and references."""
    extra: Callable[[Encoder, StateNode], Any] | None = None
    """What making such an object takes beside its content, as plain data and references."""
    make: Callable[[StateRebuild, EncodedNode], Any] = not_made
    """An object of this kind, still empty, or ABSENT."""
    is_whole: Callable[[StateRebuild, EncodedNode], bool] | None = None
    """Asked of an object that was made, once all others are here: whether it has all that it is made of. Else there is none."""
    fits: Callable[[EncodedNode, Any], bool] = of_same_class
    fill: Callable[[StateRebuild, EncodedNode, Any], None] = nothing
    """Puts the recorded content into the object of another process."""
    child: Callable[[Any, Any], Any] = attribute
    """What stands at a key of the object, or ABSENT."""
    comes_and_goes: bool = False
    """Whether such an object leaves no trace in a host state beside its node."""
    turn: int = 1
    """In which turn such objects are filled: models, then objects that refer to their parameters, last what is known by those."""
