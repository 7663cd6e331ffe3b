"""Put a recorded host state into a process that built its own objects: a joiner at the head of the training loop.

Objects that set-up builds are found by the way that leads to them and updated in place, so that every holder sees the recorded
state. Objects that were born during training are made.
"""

from __future__ import annotations

import functools
import pickle
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from types import FrameType
from typing import IO, Any

import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.parallel.module_hooks import MadeHooks, handle_of
from torchrelay.shim.capture.handlers import HANDLERS
from torchrelay.shim.capture.handlers.data import DataForm, form_of
from torchrelay.shim.capture.models import module_parts
from torchrelay.shim.capture.models.aliases import address_of, is_within
from torchrelay.shim.capture.models.bound_tensors import at_place
from torchrelay.shim.capture.models.spaces import module_at
from torchrelay.shim.capture.records import closures, shared_memory
from torchrelay.shim.capture.records.bound_calls import method, partial
from torchrelay.shim.capture.records.children import child
from torchrelay.shim.capture.records.encode import EncodedNode
from torchrelay.shim.capture.records.holders import VARIABLES, Holders, is_of_set_up
from torchrelay.shim.capture.records.recorded_data import RecordedData
from torchrelay.shim.capture.state.filled_queues import FilledQueues, QueueKind, check_not_in_doubt
from torchrelay.shim.capture.state.host_state import path_of
from torchrelay.shim.capture.state.key_text import text_of
from torchrelay.shim.capture.state.process_settings import ProcessSettings
from torchrelay.shim.capture.state.tags import (
    ADDRESS,
    BOUND,
    FILE,
    FREE,
    GROUPED,
    HOOK,
    METHOD,
    NAMED,
    OPAQUE,
    PART,
    PARTIAL,
    REF,
    SAVE,
    TUPLE,
    VALUE,
    WEAK,
    WINDOW,
    is_left,
)
from torchrelay.shim.capture.values import by_value
from torchrelay.shim.capture.values.array_windows import Window
from torchrelay.shim.capture.values.base_types import make_tuple, same_elements, tuple_items
from torchrelay.shim.capture.values.callables import ElementOf, of_class
from torchrelay.shim.capture.values.item_mark import TakenItems
from torchrelay.shim.capture.values.kinds import DATA, Kind, kind_of
from torchrelay.shim.capture.values.replay_point import ABSENT
from torchrelay.shim.capture.values.written_files import FileForm, is_open_there
from torchrelay.shim.script.save_future import SaveId


class StateRebuild:
    """`frames`: the joiner's frames, outermost first. First `resolve`, then `fill`. `missing` names what has no place here.

    `loops`: the iterators of its running loops. `settings`, `queues`: those of this process. `promised(save)`: returns a stand-in
    for a save that the lost rank waited for, or could have. `opens`: opens files as the builtin does, or copies of them where
    nothing may be written yet.
    """

    def __init__(
        self,
        frames: Sequence[FrameType],
        module_globals: dict[str, dict[str, Any]],
        promised: Callable[[SaveId], Any],
        loops: Sequence[Any] = (),
        *,
        settings: ProcessSettings,
        queues: FilledQueues,
        opens: Callable[..., IO[Any]] = open,
        was_made: Callable[[Any, DataForm], bool] = lambda obj, form: True,
        known_data: Mapping[int, Any] | None = None,
        data_mark: int = -1,
        made_hooks: MadeHooks | None = None,
        is_at_gate: bool = False,
    ) -> None:
        self._promised = promised
        self.opens = opens
        self._frames = frames
        self._loops = loops
        self._settings = settings
        self._queues = queues
        self._was_made = was_made
        self._known_data = known_data or {}
        self._data_mark = data_mark
        self._globals = module_globals
        self._nodes: list[EncodedNode] = []
        self.objects: list[Any] = []
        self.missing: list[str] = []
        self._dropped: list[str] = []
        self._left: set[int] = set()
        self._made: list[int] = []
        """Nodes that had no object here."""
        self._displaced: list[int] = []
        """Data of training in whose place data of set-up's stands."""
        self.displaced: list[Any] = []
        """The data of set-up's that stands there."""
        self._taken: set[int] = set()
        """Objects of this process that stand for a node, by id: two recorded objects are two here, too."""
        self.rebound: set[int] = set()
        """Ids of roots of trees in which the lost rank had other modules than its set-up."""
        self.made_modules: set[int] = set()
        """Ids of modules that were made here."""
        self.last: dict[int, Any] = {}
        """What loader iterators have yielded last, by id."""
        self.cells: dict[int, types.CellType] = {}
        """Variables of functions that are made, by what told them apart in the lost rank."""
        self.made_generators: list[Any] = []
        """Generators without arguments until they are put to their place: none of their code may run before."""
        self.made_hooks = MadeHooks() if made_hooks is None else made_hooks
        self.is_at_gate = is_at_gate
        self._methods: dict[tuple[int, str], Any] = {}
        self._files: dict[int, IO[Any]] = {}
        """Files that were opened, by what told them apart in the lost rank."""
        self._of_groups: dict[int, list[Any]] = {}
        """By a parameter group's node, its parameters."""
        self._memory: dict[int, list[torch.Tensor]] | None = None
        """Parameters and buffers by the address of their memory, once somebody has asked."""

    def resolve(self, nodes: list[EncodedNode]) -> None:
        """Find or make the object of each node; `objects` may be exchanged before `fill`.

        Raises StateMismatchError where the recorded state cannot be that of this script at this place.
        """
        self._nodes = nodes
        for node in nodes:
            found = self._resolve(node)
            self.objects.append(found)
            self._taken.add(id(found))
            if node.kind is Kind.MODULE and found is not ABSENT:
                is_told_whole = node.content[0] < 0 and node.content[4] is None
                if self._put_parts(node, found) or is_told_whole:
                    self.rebound.add(id(found))
        self._leave_incomplete()
        shared_memory.share(((node.extra, tensor) for node, tensor in self.each(Kind.TENSOR)), self.objects)

    def _leave_incomplete(self) -> None:
        """Leave out what was made and lacks a part, and so what is made of it."""
        while lacking := [number for number in self._made if self._lacks_parts(number)]:
            for number in lacking:
                node = self._nodes[number]
                self.objects[number] = ABSENT
                self._leave(number, f"{node.kind.name.lower()} {text_of(node.key)}")
        for number in self._displaced:
            if self.objects[number] is ABSENT:  # else set-up's would be used in its place
                self.lacks(self._nodes[number])

    def _lacks_parts(self, number: int) -> bool:
        node = self._nodes[number]
        is_whole = HANDLERS[self._nodes[number].kind].is_whole
        return self.objects[number] is not ABSENT and is_whole is not None and not is_whole(self, node)

    def data(self) -> Iterator[tuple[Any, DataForm]]:
        """Yield the loaders and data sets that are here, with their forms."""
        for kind in DATA:
            yield from ((obj, form_of(node)) for node, obj in self.each(kind))

    def data_found(self) -> Iterator[tuple[EncodedNode, Any]]:
        """Yield the nodes of loaders and data sets for which one of this process's own stands, with that."""
        made = {*self._made}
        for number, (node, obj) in enumerate(zip(self._nodes, self.objects)):
            if node.kind in DATA and obj is not ABSENT and number not in made:
                yield node, obj

    def told_apart(self) -> Iterator[tuple[int, Any]]:
        """Yield data that was known by more than where it is now, or was made, with the number of its origin in the lost rank."""
        for number in (*self._data.numbers(), *self._made):
            node = self._nodes[number]
            obj = self.objects[number]
            if node.kind in DATA and obj is not ABSENT:
                yield form_of(node).number, obj

    def has_all(self, content: dict[Any, Any]) -> bool:
        """Return whether each of these values is here, or can be made."""
        return all(self.decode(value, ABSENT) is not ABSENT for value in content.values())

    def _put_parts(self, node: EncodedNode, root: Any) -> bool:
        number = len(self.objects) - 1

        def early(value: Any, there: Any) -> Any:
            found = self.there(value[1])
            return found if found is ABSENT or value[0] == REF else module_at(found, value[2])

        def elsewhere(path: str) -> Iterator[Any]:
            for holder, key in self._holders.of_part(number, path):
                parent = self.there(holder)
                yield None if parent is ABSENT else self._child(holder, parent, key)

        return module_parts.put(node.content[7], root, early, elsewhere, self.made_modules)

    def fill(self, *, but: Collection[Kind] = (), can_come: bool = False) -> None:
        """Fill the objects. `but`: kinds to leave as they are. `can_come`: leave what cannot be filled yet, too, since all is put
        once more where the rank enters: an optimizer of a model of an earlier iteration, in a variable that this one binds anew.
        """
        kinds = [node.kind for node in self._nodes]
        filled = [n for n, kind in enumerate(kinds) if self.objects[n] is not ABSENT and kind not in but]
        threads = self._queues.threads
        threads.look(self._queues.fillers())
        for number in sorted(filled, key=lambda n: HANDLERS[kinds[n]].turn):
            there = self.objects[number]
            before = threads.content_of(there) if threads else {}
            try:
                HANDLERS[kinds[number]].fill(self, self._nodes[number], there)
            except StateMismatchError:
                if not can_come:
                    raise
            if before:
                check_not_in_doubt(threads, before, threads.content_of(there))

    def lead_queue(self, node: EncodedNode, there: Any) -> None:
        """Take items from a queue that a thread fills, as many as the lost rank had taken. Raises StateMismatchError."""
        self._queues.lead(there, TakenItems(*node.content), self.there(node.parent))

    def without_threads(self, content: Mapping[str, Any], of: Any) -> Mapping[str, Any]:
        """Return the attributes of an object but for those that threads of this process change: they stay as these have them."""
        return self._queues.threads.without_theirs(of, content)

    def own_queue(self, there: Any) -> None:
        """Note that a queue of this process holds what is state of training."""
        self._queues.use(there).counts_as = QueueKind.OWN

    def each(self, kind: Kind) -> Iterator[tuple[EncodedNode, Any]]:
        """Yield the nodes of a kind that have an object here, with the object."""
        for node, obj in zip(self._nodes, self.objects):
            if node.kind is kind and obj is not ABSENT:
                yield node, obj

    def shares_a_models_memory(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor is no parameter or buffer, but lies in the memory of one: a write to it is a write to that."""
        if self._memory is None:
            self._memory = {}
            for _, root in self.each(Kind.MODULE):
                for owner in chain(root.parameters(), root.buffers()):
                    self._memory.setdefault(address_of(owner), []).append(owner)
        address = address_of(tensor)
        owners = self._memory.get(address, ()) if address else ()
        return all(owner is not tensor for owner in owners) and any(is_within(tensor, owner) for owner in owners)

    def check_complete(self) -> None:
        """Raise StateMismatchError where training has made what cannot be made again: nothing goes missing in silence."""
        if self._dropped:
            raise StateMismatchError(f"made by training, and cannot be made again: {', '.join(self._dropped[:5])}")

    def also(self, number: int, node: EncodedNode) -> Any:
        """Return the object of a node that is written beside the others: the one of `objects`, or one more, which is made."""
        if number < len(self._nodes) and self.objects[number] is not ABSENT:
            return self.objects[number]
        self.make_room([number])
        self.objects[number] = HANDLERS[node.kind].make(self, node)
        return self.objects[number]

    def make_room(self, numbers: Iterable[int]) -> None:
        self.objects += [ABSENT] * (max(numbers, default=-1) + 1 - len(self.objects))

    def _resolve(self, node: EncodedNode) -> Any:
        if node.kind is Kind.GONE:
            return ABSENT
        if node.parent < 0:
            found = self._root(node.kind, node.key)
            if found is ABSENT and node.kind is Kind.FRAME:
                here = " > ".join(frame.f_code.co_name for frame in self._frames)
                number, name = node.key
                raise StateMismatchError(
                    f"the recorded training loop runs in {name}() as function {number + 1}, this process is elsewhere ({here})"
                )
            return found
        number = len(self.objects)
        if (known := self._data.of(number)) is not ABSENT and self._stands_for(number, known):
            return known
        parent = self.objects[node.parent]
        there = ABSENT if parent is ABSENT else self._child(node.parent, parent, node.key)
        handler = HANDLERS[node.kind]
        if is_of_set_up(node):
            there = self._of_set_up(node, there)
        elif there is ABSENT and node.kind in DATA:
            there = self._elsewhere(number, by_variables=True)
        if self._stands_for(number, there):
            return there
        self._made.append(number)
        if node.kind in DATA and form_of(node).is_made and kind_of(type(there)) is node.kind:
            self._displaced.append(number)
            self.displaced.append(there)
        return handler.make(self, node)

    def _root(self, kind: Kind, key: Any) -> Any:
        """Return the object of a root, or ABSENT."""
        if kind is Kind.FRAME:
            number, name = key
            is_there = number < len(self._frames) and self._frames[number].f_code.co_name == name
            return self._frames[number] if is_there else ABSENT
        if kind is Kind.GLOBALS:
            return self._globals.get(key, ABSENT)
        return {Kind.LOOPS: self._loops, Kind.SETTINGS: self._settings, Kind.HELD: self._settings.holds}.get(
            kind, ABSENT
        )

    @functools.cached_property
    def _data(self) -> RecordedData:
        return RecordedData(self._nodes, self._root, self._known_data, self._data_mark)

    def _child(self, number: int, parent: Any, key: Any) -> Any:
        """Return what stands at a key of the object of a node, or ABSENT."""
        node = self._nodes[number]
        if node.kind is Kind.OPTIMIZER_STATE:
            parent = self.there(node.parent)  # it tells which parameter is at a place
        if type(key) is ElementOf and node.kind is Kind.SET:
            return next((e for e in of_class(parent, key.cls) if id(e) not in self._taken), ABSENT)
        return child(node.kind, parent, key)

    def _of_set_up(self, node: EncodedNode, there: Any) -> Any:
        """Return an object by its other holders before its variable, which changes its meaning and may not be bound yet."""
        by_variable = self._nodes[node.parent].kind in VARIABLES
        if not by_variable and self._stands_for(len(self.objects), there):
            return there
        other = self._elsewhere(len(self.objects), by_variables=False)
        return there if other is ABSENT else other

    def _stands_for(self, number: int, there: Any) -> bool:
        node = self._nodes[number]
        if there is ABSENT or id(there) in self._taken or not HANDLERS[node.kind].fits(node, there):
            return False
        if self._data.is_anothers(number, there):
            return False
        return node.kind not in DATA or not form_of(node).is_made or self._was_made(there, form_of(node))

    def _elsewhere(self, number: int, *, by_variables: bool) -> Any:
        """Return a node's object by another holder in the record that is here already, or ABSENT."""
        for holder, key in self._holders.of(number, by_variables=by_variables):
            parent = self.there(holder)
            there = ABSENT if parent is ABSENT else self._child(holder, parent, key)
            if self._stands_for(number, there):
                return there
        return ABSENT

    def there(self, number: int) -> Any:
        """Return the object of a node, if need be before its turn, as far as it need not be made; else ABSENT."""
        if number < len(self.objects):
            return self.objects[number]
        node = self._nodes[number]
        there = self._data.of(number)
        if node.parent < 0:
            return ABSENT
        if there is ABSENT:
            parent = self.there(node.parent)
            there = ABSENT if parent is ABSENT else self._child(node.parent, parent, node.key)
        return there if self._stands_for(number, there) else ABSENT

    @functools.cached_property
    def _holders(self) -> Holders:
        return Holders(self._nodes)

    @property
    def left(self) -> frozenset[int]:
        """Return the nodes that are not carried: where they stood, this process keeps its own objects."""
        return frozenset(filter(self._is_left, self._left))

    def _is_left(self, number: int) -> bool:
        return self.objects[number] is ABSENT

    def leaves(self, what: str) -> None:
        """Leave out the object of the node that is being resolved: it is not carried, and need not be."""
        self._leave(len(self.objects), what)

    def _leave(self, number: int, what: str) -> None:
        self.missing.append(what)
        self._left.add(number)

    def path(self, node: EncodedNode) -> str:
        """Return the way to the node's object, as the script would write it."""
        return path_of(self._nodes, next(n for n, other in enumerate(self._nodes) if other is node))

    def lacks(self, node: EncodedNode) -> None:
        """Note that training has made this object, and that it cannot be made again."""
        self.missing.append(f"{node.kind.name.lower()} {text_of(node.key)}")
        self._dropped.append(f"{text_of(node.key)} ({_what(node)})")

    def decode(self, value: Any, there: Any) -> Any:  # noqa: C901 - one case for each tag
        """Return the value. `there`: what stands in the place now; it is kept where the recorded value has no state."""
        if type(value) is not tuple:
            return value
        tag = value[0]
        if tag == REF:
            found = self.objects[value[1]]
            return there if found is ABSENT else found
        if tag == TUPLE:
            return self._tuple(value, there)
        if tag == WEAK:
            is_weak = type(there) is weakref.ref and there() is not None
            target = self.decode(value[1], there() if is_weak else ABSENT)
            return there if target is ABSENT or (is_weak and there() is target) else weakref.ref(target)
        if tag == OPAQUE:
            return there if len(value) < 3 else self._function(value[2], there)
        if tag == PART:
            root = self.objects[value[1]]
            return there if root is ABSENT else module_at(root, value[2])
        if tag == BOUND:
            root = self.objects[value[1]]
            return there if root is ABSENT else at_place(root, value[2])
        if tag == WINDOW:
            owner = self.objects[value[1]]
            return there if owner is ABSENT else Window(*value[2]).over(owner, there)
        if tag == VALUE:
            return by_value.loaded(value[1], there)
        if tag == GROUPED:
            group = self.objects[value[1]]
            return there if group is ABSENT else self.parameters_of(self._nodes[value[1]], group)[value[2]]
        if tag == FREE:
            return there if value[1].fits(there) and not self._is_bound(there) else value[1].make()
        if tag == SAVE:
            return self._promised(value[1])
        if tag == FILE:
            return there if is_open_there(value[2], there) else self._opened(value[1], value[2])
        if tag == HOOK:
            return self._hook_handle(value, there)
        if tag == NAMED:
            return pickle.loads(value[1])
        if tag == ADDRESS:
            target = self.decode(value[1], ABSENT)
            return there if target is ABSENT else id(target)
        if tag in (METHOD, PARTIAL):
            if there is not ABSENT and is_left(value, self._is_left):
                return there
            made = (
                method(self.decode, self._methods, value, there)
                if tag == METHOD
                else partial(self.decode, value, there)
            )
            return there if made is ABSENT else made
        raise StateMismatchError(f"the journal holds an unknown tag {tag!r}")

    def empty_function(self, form: tuple[Any, ...]) -> Any:
        """Return a function that training has made, whose variables are filled later, or ABSENT."""
        made = closures.empty(self, form)
        if made is ABSENT:
            self._dropped.append(f"function {'.'.join(form[1])}.<locals>")
        return made

    def _function(self, closure: closures.Closure, there: Any) -> Any:
        """Return a function that another one has returned.

        Where it shares variables with code that goes on, it is made for an empty place alone.
        """
        if there is not ABSENT and closures.stands_for(there, closure):
            return there
        made = closures.made(self, closure) if there is ABSENT or closure.is_settled else ABSENT
        if made is ABSENT and there is not ABSENT:
            self._dropped.append(f"function {'.'.join(closure.outer)}.<locals>")
        return made if made is not ABSENT else there

    def _hook_handle(self, value: tuple[Any, ...], there: Any) -> Any:
        _, number, (path, name, place) = value
        root = self.objects[number]
        module = ABSENT if root is ABSENT else module_at(root, path)
        made = None if module is ABSENT else handle_of(module, name, place)
        return there if made is None else made

    def _tuple(self, value: tuple[Any, ...], there: Any) -> Any:
        """Return a tuple, or a frozenset. `there` is kept where it is the same: others may hold it, and it may have attributes."""
        cls = value[1] or tuple
        items = value[2]
        now = tuple_items(there) if isinstance(there, tuple) else ()
        olds = now if len(now) == len(items) else [ABSENT] * len(items)
        parts = [self.decode(v, old) for v, old in zip(items, olds)]
        if any(p is ABSENT for p in parts) or (type(there) is cls and same_elements(there, parts)):
            return there
        made = make_tuple(cls, parts)
        own = self.decode(value[3], ABSENT) if len(value) > 3 else ABSENT
        if own is not ABSENT:
            object.__setattr__(made, "__dict__", own)
        return made

    def parameters_of(self, node: EncodedNode, group: dict[str, Any]) -> list[Any]:
        """Return what a parameter group is to hold: the same list in each call. Raises StateMismatchError."""
        known = self._of_groups.get(id(node))
        if known is not None:
            return known
        own = group["params"]
        items = node.content["params"][2]
        olds = own if len(own) == len(items) else [ABSENT] * len(items)
        parameters = [self.decode(value, old) for value, old in zip(items, olds)]
        if any(parameter is ABSENT for parameter in parameters):
            raise StateMismatchError(
                f"{self.path(node)}: training has given the optimizer a parameter that is part of no model here"
            )
        self._of_groups[id(node)] = parameters
        return parameters

    def _opened(self, told_apart: int, form: FileForm) -> IO[Any]:
        if told_apart not in self._files:
            try:
                self._files[told_apart] = form.open(self.opens)
            except (OSError, LookupError) as e:  # or a codec that is not here
                raise StateMismatchError(f"{form.path}, which training had open, cannot be written to here: {e}") from e
        return self._files[told_apart]

    def _is_bound(self, parameter: Any) -> bool:
        """Return whether the parameter belongs to a model, as models are once they are filled."""
        roots = [self.objects[n] for n, node in enumerate(self._nodes) if node.kind is Kind.MODULE]
        return any(p is parameter for root in roots if root is not ABSENT for p in root.parameters())

    def mapping(self, content: dict[Any, Any], now: dict[Any, Any]) -> dict[Any, Any]:
        decoded = {k: self.decode(v, now.get(k, ABSENT)) for k, v in content.items()}
        return {k: v for k, v in decoded.items() if v is not ABSENT}

    def items(self, content: list[Any], now: list[Any], what: str) -> list[Any]:
        olds = now if len(now) == len(content) else [ABSENT] * len(content)
        items = [self.decode(v, old) for v, old in zip(content, olds)]
        if any(i is ABSENT for i in items):
            raise StateMismatchError(f"{what}: an element has state that cannot be carried")
        return items


def _what(node: EncodedNode) -> str:
    if node.kind in (Kind.FUNCTION, Kind.CLASS):
        return f"{node.kind.name.lower()} {node.extra[1]}"
    return node.cls.__name__ if node.cls is not None else "of a local class"
