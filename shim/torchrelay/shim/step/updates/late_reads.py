"""Find reads, behind a step's update, of tensors that this part of the step writes to: a moment that is pruned there and logged.

A rank that is lost behind its gate is restored by going through the rest of that step once more, with tensors from a rank that may
be through with it. What was read there from a tensor before its last write, or after a write that torch does not count, is not
known then. So the rest of some steps is followed, as it would be there. From then on a rank copies what is read so behind each
update. Where that is too much, it is said beforehand that such a loss is not survived.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from torchrelay.shim.adapters import dynamo
from torchrelay.shim.adapters.tensors.dtensor import local
from torchrelay.shim.adapters.tensors.following_mode import is_ours
from torchrelay.shim.capture.models import device
from torchrelay.shim.observe.origins import SourcePlace, call_site
from torchrelay.shim.step.step_state import StepPosition
from torchrelay.shim.step.updates.unread_results import UnreadResults
from torchrelay.shim.tensors.taint import ABOUT_FORM, MADE, Watch, tensors_of
from torchrelay.shim.tensors.tensor_versions import version_of

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine

_FIRST_UPDATES = 4
"""Followed behind a process's first updates, and behind those whose number is a power of two."""
_MOST_STEPS = 16

_WITHOUT_CONTENT = ABOUT_FORM | {"__get__", "__set__"}
"""Functions that read no content: attributes of a tensor are known by their memory."""

_ABOVE = 3
"""Frames from the one that notes a read to the script's."""


class LateRead(NamedTuple):
    """The path of a tensor, the function that has read it, and where."""

    path: str
    name: str
    place: SourcePlace


class _Following(Watch):
    """Note what is read, and which writes torch counts. `made`: sources whose names begin with MADE; `used`: those used so far."""

    def __init__(self, sources: Mapping[str, torch.Tensor]) -> None:
        super().__init__(sources)
        self._first = len(sources)
        self._versions = {path: version_of(tensor) for path, tensor in sources.items()}
        self._counted: dict[int, int] = {}
        """By content that a counted write has left, the version that the tensor had then."""
        self._reads: dict[tuple[str, int], SourcePlace] = {}
        self.made = {name: tensor for name, tensor in sources.items() if name.startswith(MADE)}
        self.used: set[str] = set()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.compiler.is_compiling() or is_ours(sys._getframe(1)):
            return func(*args, **(kwargs or {}))
        if self.made and getattr(func, "__name__", "") not in _WITHOUT_CONTENT:
            found = (self._sources_of(tensor) for tensor in tensors_of((args, kwargs)))
            names = (self._names[number] for numbers in found for number in numbers)
            self.used.update(name.removeprefix(MADE) for name in names if name in self.made)
        return super().__torch_function__(func, types, args, kwargs)

    def _check(self, name: str, bits: int) -> None:
        self._escaped.clear()
        if bits and (name, bits) not in self._reads:
            self._reads[name, bits] = call_site(sys._getframe(_ABOVE))

    def _wrote(self, tensor: torch.Tensor, name: str, content: int) -> list[str]:
        paths = super()._wrote(tensor, name, content)
        for path in paths:
            version = version_of(self.source(path))
            if version != self._versions[path]:
                self._versions[path] = version
                self._counted[self._present[self._numbers[path]]] = version
        return paths

    def read_unknown(self, late: Collection[str], given: Collection[str]) -> list[LateRead]:
        """Return the reads of what a new process would not have.

        `late`: the paths that were written to, as far as torch counts. `given`: those that a new process is given as the update
        has left them.
        """
        unknown = 0
        for content, path in enumerate(self._names):
            if not path or path in given or path.startswith(MADE):
                continue
            if content < self._first:
                is_known = path not in late and self.is_at_home(path)
            else:
                is_known = self._counted.get(content) == version_of(self.source(path))
            unknown |= 0 if is_known else 1 << content
        return [
            LateRead(path, name, place)
            for (name, bits), place in self._reads.items()
            for path in dict.fromkeys(path for n, path in enumerate(self._names) if bits & unknown & 1 << n)
        ]


class LateReads:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._updates = 0
        self._steps = 0
        self._watch: _Following | None = None
        self._read_bytes: dict[str, int] = {}
        """By path, the sizes of the tensors that were read so."""
        self.is_found = False
        """Whether there were such reads of more than is copied."""
        self.results = UnreadResults()

    def updated(self) -> None:
        """Right after the last update of a step: follow the rest of it, if it is time."""
        engine = self._engine
        assert engine.commit is not None
        state = engine.commit.state
        given = {*engine.updates.as_updated(), *(engine.own.carried if engine.own is not None else ())}
        made = {f"{MADE}{path}": tensor for path, tensor in self.results.made.items()}
        self.begin(lambda: {p: t for p, t in device.whole(state, state.roots).items() if p not in given} | made)

    def at_head(self) -> None:
        """At the next boundary, before anything is done there: say what was read, if the step was followed to its end."""
        engine = self._engine
        if self.follows() and engine.commit is not None and engine.step.position is StepPosition.AFTER:
            updates = engine.updates
            late = updates.late_now().keys()
            self.end(late, updates.as_updated().keys(), updates.updated.copies_also, engine.reporter.reads_late)

    def begin(self, sources: Callable[[], Mapping[str, torch.Tensor]]) -> None:
        """Follow the rest of the step, right after its last update. `sources`: returns what it may read, by path."""
        self.drop()
        self._updates += 1
        due = self._updates <= _FIRST_UPDATES or self._updates.bit_count() == 1
        if self.is_found or not due or self._steps >= _MOST_STEPS or dynamo.compilations():
            return
        self._steps += 1
        self._watch = _Following(sources())
        self._watch.__enter__()

    def follows(self) -> bool:
        return self._watch is not None

    def end(
        self,
        late: Collection[str],
        given: Collection[str],
        copies: Callable[[Collection[str], int], bool],
        told: Callable[[LateRead], None],
    ) -> None:
        """Look what was read, at the end of the step. `late`, `given`: as for `_Following.read_unknown`.

        `copies`: asked to copy tensors of so many bytes behind each further update; `told`: told of a read where it cannot.
        """
        watch = self._watch
        self.drop()
        if watch is None or dynamo.compilations():
            return
        self.results.followed({name.removeprefix(MADE): tensor for name, tensor in watch.made.items()}, watch.used)
        found = watch.read_unknown(late, given)
        sources = {read.path: watch.source(read.path) for read in found}
        self._read_bytes.update((path, local(source).nbytes) for path, source in sources.items())
        if found and not copies(self._read_bytes.keys(), sum(self._read_bytes.values())):
            self.is_found = True
            told(found[0])

    def drop(self) -> None:
        """Follow the step no longer, and let go of what it has made."""
        self.results.drop()
        if self._watch is not None and self._watch.is_on():  # else later
            self._watch.__exit__(None, None, None)
            self._watch = None
