"""Compare two host states that were written down: is a rank where it says it is?

Both are graphs of nodes. They are walked together from their roots, so that nodes may have other numbers in each: an object of the
first one belongs to the object of the second one that is found in the same place, and stays with it wherever either is met.
"""

from __future__ import annotations

import math
import pickle
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from torch.utils.data import IterableDataset

from torchrelay.shim.capture.models.aliases import Alias
from torchrelay.shim.capture.models.bound_tensors import TensorForm
from torchrelay.shim.capture.models.module_parts import Parts
from torchrelay.shim.capture.models.spaces import BUFFERS
from torchrelay.shim.capture.records.difference import Difference, shown, shown_form, shown_part, type_of
from torchrelay.shim.capture.records.encode import EncodedNode
from torchrelay.shim.capture.records.set_up_trees import tree_of
from torchrelay.shim.capture.state.host_state import Inside, LargeTensor, Nth, OptimizerTensor, path_of
from torchrelay.shim.capture.state.keys import Key, by_place
from torchrelay.shim.capture.state.tags import (
    ADDRESS,
    BOUND,
    FILE,
    FREE,
    GROUPED,
    HOOK,
    METHOD,
    OWN,
    PART,
    PARTIAL,
    REF,
    TUPLE,
    VALUE,
    WEAK,
    WINDOW,
    is_left,
)
from torchrelay.shim.capture.values import array_difference
from torchrelay.shim.capture.values.alike import alike
from torchrelay.shim.capture.values.callables import ElementOf
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.values.long_list import decoded
from torchrelay.shim.capture.values.replay_point import ABSENT
from torchrelay.shim.capture.values.small import SMALL_BYTES, TensorValue

MAX_DIFFERENCES = 20

_MAPPINGS = frozenset(
    {Kind.FRAME, Kind.GLOBALS, Kind.ATTRS, Kind.DICT, Kind.PARAM_GROUP, Kind.OPTIMIZER, Kind.DDP, Kind.DATASET}
    | {Kind.FUNCTION, Kind.CLASS, Kind.OPTIMIZER_STATE, Kind.LOOPS, Kind.CALLS, Kind.HELD, Kind.CONTEXT_VARIABLE}
)
_WHOLE = frozenset({Kind.ATTRS, Kind.DICT})
"""Mappings that hold nothing else than what was recorded. In the others there are names that are no state, too."""
_LED = frozenset({Kind.LOADER, Kind.LOADER_ITER, Kind.REPLAY_POINT, Kind.CYCLE})
"""What comes next from these is told by the record of what was drawn, not by their content."""


class Comparison:
    """Where `now` differs from `then`. What `now` has besides in its variables does not count.

    `trees`: of the set-up that `then` belongs to, as its journal has them. `same(a, b)`: whether node `a` of `then` and node `b` of
    `now`, none of them a root, are one object, where both states are of the same process. `left`: nodes of `then` that were not
    carried into the process of `now`, which keeps its own objects in their places. `read(b)`: the content of tensor `b` of `now`,
    for tensors that `then` has by value though they are large: a gate's journal has what only the lost rank's step had made.
    """

    def __init__(
        self,
        then: Sequence[EncodedNode],
        now: Sequence[EncodedNode],
        trees: Sequence[Any] = (),
        same: Callable[[int, int], bool] | None = None,
        left: Collection[int] = (),
        read: Callable[[int], TensorValue] | None = None,
    ) -> None:
        self._then = then
        self._now = now
        self._trees = trees
        self._same = same
        self._read = read
        self._left = frozenset(left)
        self.partner: dict[int, int] = {}
        """Node of `then` -> node of `now`."""
        self._taken: dict[int, int] = {}
        self._queue: deque[tuple[int, int]] = deque()
        self._found: list[Difference] = []
        self._at = (-1, -1)

    def run(self) -> list[Difference]:
        """Return what differs, at most MAX_DIFFERENCES."""
        roots = {(node.kind, node.key): number for number, node in enumerate(self._now) if node.parent < 0}
        below_then = _children(self._then)
        below_now = _children(self._now)
        for number, node in enumerate(self._then):
            if node.parent < 0 and node.kind is not Kind.GONE:
                there = roots.get((node.kind, node.key))
                if there is None:
                    self._found.append(Difference(path_of(self._then, number) or str(node.key), "there", "not there"))
                else:
                    self._pair(number, there)
        while self._queue and len(self._found) < MAX_DIFFERENCES:
            a, b = self._at = self._queue.popleft()
            if self._nodes(self._then[a], self._now[b]):
                self._below(below_then.get(a, ()), dict(below_now.get(b, ())))
        return self._found[:MAX_DIFFERENCES]

    def _below(self, then: Sequence[tuple[Any, int]], now: dict[Any, int]) -> None:
        """Compare what hangs below a node without being part of its content: a loader's sampler, the hooks of a module."""
        for key, number in then:
            if number in self.partner:
                continue
            there = self._like(number, key, now) if _is_element(key) else now.get(key)
            if there is not None and there not in self._taken:
                self._pair(number, there)

    def _like(self, number: int, key: Any, now: dict[Any, int]) -> int | None:
        """Return the element that stands for one of a set: of its class, and one that holds the same numbers, if there is one."""
        others = [other for at, other in now.items() if _of_class(at) == _of_class(key) and other not in self._taken]
        meant = _plain(self._then[number].content)
        return next((other for other in others if alike(_plain(self._now[other].content), meant)), now.get(key))

    def _pair(self, a: int, b: int) -> bool:
        if self.partner.get(a, b) != b or self._taken.get(b, a) != a:
            return False
        if a not in self.partner:
            self.partner[a] = b
            self._taken[b] = a
            self._queue.append((a, b))
        return True

    def _differ(self, keys: tuple[Any, ...], was: str, now: str) -> None:
        a, b = self._at
        path = path_of(self._then, a, *keys) or str(self._then[a].key)
        self._found.append(Difference(path, was, now, b, keys[-1] if keys else None))

    def _nodes(self, then: EncodedNode, now: EncodedNode) -> bool:  # noqa: C901 - one case for each kind of state
        """Compare two nodes. Return whether what hangs below them can be compared, too."""
        if then.kind is not now.kind or (then.cls is not None and now.cls is not None and then.cls is not now.cls):
            self._differ((), type_of(then), type_of(now))
            return False
        if self._same is not None and then.parent >= 0 and not self._same(*self._at):
            self._differ((), f"one {type_of(then)}", "another one")
            return False
        kind = then.kind
        was = then.content
        content = now.content
        if kind in _LED or (kind is Kind.DATASET and _is_stream(then)):
            return True
        if kind is Kind.MODULE:
            self._modules(was, content)
        elif kind is Kind.SETTINGS:
            for name in {**was, **content}:
                if was.get(name, ABSENT) != content.get(name, ABSENT):
                    self._differ(
                        (name,), *(shown(of[name]) if name in of else "as set-up left it" for of in (was, content))
                    )
        elif kind is Kind.TRAINING_FILES:
            for name in {**was, **content}:
                if was.get(name, ABSENT) != content.get(name, ABSENT):
                    self._differ((name,), "one content", "another one")
        elif kind in _MAPPINGS or (kind is Kind.QUEUE and isinstance(was, dict) and isinstance(content, dict)):
            self._mappings(was, content, whole=kind in _WHOLE)
        elif kind is Kind.OBJECT_ARRAY and then.extra != now.extra:
            self._differ((), f"of the form {then.extra}", f"of the form {now.extra}")
        elif kind in (Kind.LIST, Kind.DEQUE, Kind.OBJECT_ARRAY) or (kind is Kind.WEAK and isinstance(was, list)):
            self._sequences(was, content)
        elif kind in (Kind.SET, Kind.WEAK):
            self._sets(was, content)
        elif kind is Kind.TENSOR:
            if isinstance(was, TensorValue) and isinstance(content, LargeTensor) and self._read is not None:
                content = self._read(self._at[1])
            self._tensors((), was, content)
        elif kind is Kind.NDARRAY and (isinstance(was, Alias) or isinstance(content, Alias)):
            self._tensors((), was, content)
        elif kind is Kind.NDARRAY and was is not None and content is not None:
            if not alike(was, content):
                self._differ((), *array_difference.in_words(was, content))
        elif kind in (Kind.GENERATOR, Kind.ITERATOR) and was is not None and content is not None:
            self._iterators(was, content)
        elif kind is not Kind.UNKNOWN and not alike(was, content):
            self._differ((), shown(was), shown(content))
        return True

    def _iterators(self, then: tuple[Any, ...], now: tuple[Any, ...]) -> None:
        """Compare iterators: plain values, which say where each stands, and mappings of what each holds."""
        for was, content in zip(then, now):
            if isinstance(was, dict):
                self._mappings(was, content, whole=False)
            elif not alike(was, content):
                self._differ((), f"at {was}", f"at {content}")

    def _mappings(self, then: dict[Any, Any], now: dict[Any, Any], *, whole: bool) -> None:
        for place, (was, key) in enumerate(zip(then, now)):
            if type(was) is Key and type(key) is Key:
                self._values((Nth(place),), was.written, key.written)
        then = by_place(then)
        now = by_place(now)
        for key, was in then.items():
            if key in now:
                self._values((key,), was, now[key])
            elif not self._is_left(was):
                self._differ((key,), self._what(was, self._then), "not there")
        if not whole:
            return
        for key in now.keys() - then.keys():
            self._differ((key,), "not there", self._what(now[key], self._now))
        if then.keys() == now.keys() and [*then] != [*now] and self._then[self._at[0]].kind is Kind.DICT:
            self._differ((), f"in the order {shown(str([*then]))}", f"in the order {shown(str([*now]))}")

    def _sets(self, then: tuple[Any, ...], now: tuple[Any, ...]) -> None:
        """Compare plain values one by one. Other elements are counted: a set has no order by which one of them could be found."""
        was, *others = then
        values, *more = now
        if not alike({*was}, {*values}):
            self._differ((), shown({*was}), shown({*values}))
        counts = [len(keys) + unknown for keys, unknown, _ in (others, more)]
        if counts[0] != counts[1]:
            self._differ((), f"of {counts[0]} objects", f"of {counts[1]}")

    def _sequences(self, then: Any, now: Any) -> None:
        if then is None or now is None:
            return  # at a gate: as at the boundary
        was = decoded(*then) if type(then) is tuple else then
        items = decoded(*now) if type(now) is tuple else now
        if len(was) != len(items):
            self._differ((), f"of {len(was)} entries", f"of {len(items)}")
            return
        for place, (a, b) in enumerate(zip(was, items)):
            self._values((place,), a, b)

    def _modules(self, then: tuple[Any, ...], now: tuple[Any, ...]) -> None:
        flags, values, buffers, forms = self._whole_tree(then)
        self._module_parts(then[7], now[7])
        if self._read is None and (then[0] < 0 or self._has_base(then)):  # at a gate there are those of the step, too
            first = tree_of(self._trees, then[0])[6] if self._has_base(then) else then[6]
            self._hooks({**first, **{place: len(order) for place, (_, order, _) in then[9].items()}}, now[6])
        if flags is not None and flags != now[1]:
            self._differ(("training",), "switched otherwise in some module", "not as it was")
        for (name, key), value in values.items():
            if (name, key) in now[2]:
                self._values((*_names(name), key), value, now[2][name, key])
            elif not self._is_left(value):
                self._differ((*_names(name), key), self._what(value, self._then), "not there")
        for name, value in buffers.items():
            keys = _names(name)
            if name in now[3]:
                self._tensors(keys, value, now[3][name])
            else:
                self._differ(keys, shown(value), "not there, or larger")

        for (name, where, key), form in forms.items():
            place = name, where, key
            if place not in now[5]:
                self._differ((*_names(name), key), "a parameter or buffer", "not there")
            elif _form(form) != _form(now[5][place]):
                self._differ((*_names(name), key), shown_form(form), shown_form(now[5][place]))

    def _module_parts(self, then: Parts, now: Parts) -> None:
        for owner, children in then.items():
            there = now.get(owner, {})
            for name, part in children.items():
                if name in there:
                    self._values((*_names(owner), name), _module(part), _module(there[name]))
                else:
                    self._differ((*_names(owner), name), "a module", "not there")

    def _hooks(self, then: dict[tuple[str, str], int], now: dict[tuple[str, str], int]) -> None:
        """Compare how many hooks modules have."""
        for name, kept in then.keys() | now.keys():
            was = then.get((name, kept), 0)
            count = now.get((name, kept), 0)
            if was != count:
                self._differ((*_names(name), kept), f"of {was} hooks", f"of {count}")

    def _has_base(self, content: tuple[Any, ...]) -> bool:
        """Return whether the journal of the set-up has the tree."""
        return bool(0 <= content[0] < len(self._trees))

    def _whole_tree(self, content: tuple[Any, ...]) -> tuple[Any, dict[Any, Any], dict[str, Any], dict[Any, Any]]:
        place, flags, values, buffers, _, forms, *_ = content
        if not self._has_base(content):
            return flags, values, buffers, forms
        _, first_flags, first_values, first_buffers, _, first_forms, *_ = tree_of(self._trees, place)
        first_values = {slot: _as_written(value) for slot, value in first_values.items()}
        forms = {**first_forms, **forms}
        buffers = {**{n: b for n, b in first_buffers.items() if _has_content(n, forms)}, **buffers}
        return flags or first_flags, {**first_values, **values}, buffers, forms

    def _tensors(self, keys: tuple[Any, ...], then: Any, now: Any) -> None:
        if then is None or now is None:
            return  # another name of a parameter, whose content comes from a donor
        if isinstance(then, OptimizerTensor) and isinstance(now, OptimizerTensor):
            if (then.place, then.name) != (now.place, now.name) or not self._pair(then.optimizer, now.optimizer):
                self._differ(keys, shown(then), shown(now))
            return
        if isinstance(then, Alias) and isinstance(now, Alias):
            if then[1:] != now[1:] or not self._pair(then.root, now.root):
                self._differ(keys, f"a part of {then.name}", f"a part of {now.name}")
        elif isinstance(then, TensorValue) and isinstance(now, TensorValue):
            if (then.dtype, then.shape, then.data, then.spread) != (now.dtype, now.shape, now.data, now.spread):
                self._differ(keys, shown(then), shown(now))
        elif isinstance(then, LargeTensor) and isinstance(now, LargeTensor):
            if (then.dtype, then.shape, then.spread, then.freed) != (now.dtype, now.shape, now.spread, now.freed):
                self._differ(keys, shown(then), shown(now))
        else:
            self._differ(keys, shown(then), shown(now))

    def _values(self, keys: tuple[Any, ...], then: Any, now: Any) -> None:
        if type(then) is not tuple or type(now) is not tuple or then[0] != now[0]:
            same = type(then) is type(now) is not tuple and alike(then, now)
            if not same and not self._is_left(then):
                self._differ(keys, self._what(then, self._then), self._what(now, self._now))
        elif then[0] == VALUE or (then[0] != TUPLE and self._is_left(then)):
            return  # pickle may write what is equal in more ways than one
        elif then[0] == REF:
            if not self._pair(then[1], now[1]):
                self._differ(keys, self._what(then, self._then), "another object")
        elif then[0] == ADDRESS:
            self._values(keys, then[1], now[1])
        elif then[0] in (PART, BOUND, WINDOW, GROUPED, HOOK):
            if then[2] != now[2] or not self._pair(then[1], now[1]):
                self._differ(keys, shown_part(then), shown_part(now))
        elif then[0] in (FREE, FILE):
            self._forms(keys, then, now)
        elif then[0] in (TUPLE, METHOD, PARTIAL, WEAK):
            self._parts(keys, then, now)
        elif not alike(then, now):
            self._differ(keys, self._what(then, self._then), self._what(now, self._now))

    def _forms(self, keys: tuple[Any, ...], then: tuple[Any, ...], now: tuple[Any, ...]) -> None:
        """Compare what is made by its form: a parameter of no model, an open file."""
        if then[0] == FILE and not then[2].is_like(now[2]):
            self._differ(keys, f"the open file {then[2].path}", f"{now[2].path}, opened otherwise")
        elif then[0] == FREE and _form(then[1]) != _form(now[1]):
            self._differ(keys, shown_form(then[1]), shown_form(now[1]))

    def _parts(self, keys: tuple[Any, ...], then: tuple[Any, ...], now: tuple[Any, ...]) -> None:
        """Compare what is looked through: a tuple, a bound method, a partial function."""
        was = [*_pieces(then)]
        pieces = [*_pieces(now)]
        if [place for place, _ in was] == [place for place, _ in pieces]:
            for (place, a), (_, b) in zip(was, pieces):
                self._values((*keys[:-1], Inside(keys[-1], place)), a, b)
        elif not self._is_left(then):
            self._differ(keys, self._what(then, self._then), self._what(now, self._now))

    def _is_left(self, value: Any) -> bool:
        """Return whether this process keeps its own object in the place of what was written as `value`."""
        return is_left(value, self._left.__contains__)

    def _what(self, value: Any, nodes: Sequence[EncodedNode]) -> str:
        if type(value) is tuple and value and value[0] == REF:
            return f"the {type_of(nodes[value[1]])} at {path_of(nodes, value[1])}"
        if type(value) is tuple and value and value[0] == OWN:
            return f"a {pickle.loads(value[1]).__name__}" if value[1] else "a module of a local class"
        return shown(value)


def _is_element(key: Any) -> bool:
    return type(key) is ElementOf or (type(key) is Inside and (_is_element(key.place) or _is_element(key.key)))


def _of_class(key: Any) -> Any:
    """Return a key without the number that an element of a set has in it."""
    if type(key) is Inside:
        return Inside(_of_class(key.key), _of_class(key.place))
    return key.cls if type(key) is ElementOf else key


def _plain(content: Any) -> Any:
    """Return what of a node's content is no reference."""
    if not isinstance(content, dict):
        return content
    return {key: value for key, value in content.items() if type(value) is not tuple}


def _module(part: Any) -> Any:
    """Return which module it is, without what it takes to make it."""
    return part[:2] if type(part) is tuple and part[0] == OWN else part


def _has_content(name: str, forms: dict[Any, Any]) -> bool:
    """Return whether a buffer of the set-up is still a small tensor."""
    owner, _, key = name.rpartition(".")
    form = forms.get((owner, BUFFERS, key))
    return form is not None and math.prod(form.shape) * form.dtype.itemsize <= SMALL_BYTES


def _form(form: TensorForm | None) -> TensorForm | None:
    return None if form is None else form._replace(device="")


def _as_written(value: Any) -> Any:
    """Write a plain value as `encode` does: the journal of the set-up has tuples as they are."""
    return (TUPLE, None, [*map(_as_written, value)]) if type(value) is tuple else value


def _names(module: str) -> tuple[str, ...]:
    """Return the way to a module below another one."""
    return tuple(module.split(".")) if module else ()


def _pieces(value: tuple[Any, ...]) -> Iterator[tuple[int | str, Any]]:
    tag = value[0]
    if tag == TUPLE:
        yield "__class__", value[1]
        if value[1] is not None and issubclass(value[1], frozenset):
            yield "__len__", len(value[2])  # of objects, which have no order by which one of them could be found
        else:
            yield from enumerate(value[2])
    elif tag == METHOD:
        yield "__self__", value[1]
        yield "__name__", value[2]
    elif tag == WEAK:
        yield "referent", value[1]
    else:
        yield "func", value[1]
        yield from enumerate(value[2])
        yield from sorted(value[3].items())


def _children(nodes: Sequence[EncodedNode]) -> dict[int, list[tuple[Any, int]]]:
    found: dict[int, list[tuple[Any, int]]] = {}
    for number, node in enumerate(nodes):
        if node.parent >= 0 and node.kind is not Kind.GONE:
            found.setdefault(node.parent, []).append((node.key, number))
    return found


def _is_stream(node: EncodedNode) -> bool:
    """Return whether a data set is a stream: what is read from it comes again from the record."""
    return node.cls is None or issubclass(node.cls, IterableDataset)
