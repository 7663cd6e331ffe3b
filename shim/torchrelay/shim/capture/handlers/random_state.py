"""Handle random generators, and numbers in shared memory, which decide what is drawn as generators do."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from torchrelay.shim.capture.handlers.handler import Handler, not_made
from torchrelay.shim.capture.iteration import shared_memory
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.state.host_state import StateNode
from torchrelay.shim.capture.state.parts import SEED_SEQUENCE, numpy_random_state, put_numpy_random_state
from torchrelay.shim.capture.values import small
from torchrelay.shim.capture.values.alike import alike
from torchrelay.shim.capture.values.kinds import Kind, kind_of

if TYPE_CHECKING:
    from torchrelay.shim.capture.records.encode import EncodedNode
    from torchrelay.shim.capture.records.rebuild import StateRebuild
    from torchrelay.shim.capture.walks.walk import Walk


def put(generator: Any, state: Any) -> None:
    """Put a generator of any of these kinds to a state."""
    _PUT[kind_of(type(generator))](generator, state)


def _put_torch(generator: torch.Generator, state: Any) -> None:
    generator.set_state(small.build(state))


def _put_python(generator: random.Random, state: Any) -> None:
    generator.setstate(state)


_PUT: dict[Kind, Callable[[Any, Any], None]] = {
    Kind.TORCH_GENERATOR: _put_torch,
    Kind.PYTHON_RANDOM: _put_python,
    Kind.NUMPY_RANDOM: put_numpy_random_state,
    Kind.SHARED_VALUE: shared_memory.put_state,
}


def _capture_torch(walk: Walk, kind: Kind, obj: torch.Generator, parent: int, key: Any) -> None:
    walk.add(kind, obj, parent, key, small.take(obj.get_state()))


def _capture_python(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    number = walk.add(kind, obj, parent, key, obj.getstate())
    if type(obj) is not random.Random:
        walk.fields(number, obj)


def _capture_numpy(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    walk.add(kind, obj, parent, key, numpy_random_state(obj))


def _capture_shared(walk: Walk, kind: Kind, obj: Any, parent: int, key: Any) -> None:
    walk.add(kind, obj, parent, key, shared_memory.state_of(obj))


def _same_shared(trees: ModuleTrees, node: StateNode) -> bool:
    return bool(shared_memory.state_of(node.obj) == node.content)


def _same_torch(trees: ModuleTrees, node: StateNode) -> bool:
    return bool(small.take(node.obj.get_state()) == node.content)


def _same_python(trees: ModuleTrees, node: StateNode) -> bool:
    return alike(node.obj.getstate(), node.content)


def _same_numpy(trees: ModuleTrees, node: StateNode) -> bool:
    return alike(numpy_random_state(node.obj), node.content)


def _undo(node: StateNode) -> None:
    put(node.obj, node.content)


def _fill(rebuild: StateRebuild, node: EncodedNode, obj: Any) -> None:
    put(obj, node.content)


def _make_torch(rebuild: StateRebuild, node: EncodedNode) -> Any:
    return torch.Generator()


def _make_python(rebuild: StateRebuild, node: EncodedNode) -> Any:
    return random.Random() if node.cls is random.Random else not_made(rebuild, node)


def _make_numpy(rebuild: StateRebuild, node: EncodedNode) -> Any:
    numpy: Any = sys.modules["numpy"]  # whose class has just been found
    made: Any = node.cls
    if made is numpy.random.RandomState:
        return made()
    if made is numpy.random.SeedSequence:
        return made(**node.content)
    bits = getattr(numpy.random, node.content["bit_generator"], None) if isinstance(node.content, dict) else None
    if bits is None or made not in (bits, numpy.random.Generator):
        return not_made(rebuild, node)
    sequence = node.content[SEED_SEQUENCE]
    drawn = bits() if sequence is None else bits(numpy.random.SeedSequence(**sequence))
    return drawn if made is bits else made(drawn)


def _make_shared(rebuild: StateRebuild, node: EncodedNode) -> Any:
    """Make a number that has its memory to itself. One with a lock may be known to other processes."""
    return node.cls() if node.cls is not None and node.cls.__module__ == "ctypes" else not_made(rebuild, node)


HANDLERS = (
    Handler(
        Kind.TORCH_GENERATOR,
        capture=_capture_torch,
        same=_same_torch,
        undo=_undo,
        make=_make_torch,
        fill=_fill,
        comes_and_goes=True,
    ),
    Handler(
        Kind.PYTHON_RANDOM,
        capture=_capture_python,
        same=_same_python,
        undo=_undo,
        make=_make_python,
        fill=_fill,
        comes_and_goes=True,
    ),
    Handler(
        Kind.NUMPY_RANDOM,
        capture=_capture_numpy,
        same=_same_numpy,
        undo=_undo,
        make=_make_numpy,
        fill=_fill,
        comes_and_goes=True,
    ),
    Handler(
        Kind.SHARED_VALUE,
        capture=_capture_shared,
        same=_same_shared,
        undo=_undo,
        make=_make_shared,
        fill=_fill,
        comes_and_goes=True,
    ),
)
