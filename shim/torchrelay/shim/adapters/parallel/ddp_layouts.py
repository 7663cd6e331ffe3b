"""Know the layout of DistributedDataParallel's gradient buckets at each boundary, and make reducers anew in it.

After the first backward DDP rebuilds its buckets in the order in which gradients became ready. With `static_graph=True` that is the
order of the second backward: the first only counts how often each gradient is added to, and reduces when it is over. A new reducer
begins with such a backward again. So all ranks get new ones; that it comes in another step changes no bit. But a reducer that was
made anew between the first step and the second would go by the third: its layout comes from us.

Leans on `_get_ddp_logging_data` (key `rebuilt_per_bucket_param_indices`), `_build_params_for_reducer`, `_bucket_config`,
`torch.distributed._compute_bucket_assignment_by_size`. Seen on torch 2.13.0 and, where `bucket_bytes_cap_default` stands for
`_bucket_config`, 2.11.0.
"""

from __future__ import annotations

import functools
import json
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters.parallel.ddp import Layout, Wrappers, as_built, new_reducer
from torchrelay.shim.adapters.tensors.own_refs import OwnRef

_SETTLED = 2
"""After so many backwards a static graph's layout is known."""


def _indices(text: str) -> list[int]:
    return [int(i) for i in text.replace(",", " ").split()]


class ReadyOrder:
    """The order in which gradients became ready in the synchronised backward that the rebuild goes by.

    DDP tells the order only later, in its logging data, which is too late for a failure in the step after.
    """

    def __init__(self, ddp: DistributedDataParallel) -> None:
        parameters, _ = ddp._build_params_for_reducer()
        self.indices: list[int] = []
        self.forwards = 0
        """How many synchronised forwards have begun; counted only for a static graph."""
        self.late = False
        """Whether a static graph's reducer was made anew after the first backward: it would go by the third."""
        self._got_gradients = False
        self._averages = False
        self._parameters = [OwnRef(parameter) for parameter in parameters]
        which = weakref.ref(ddp)
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(functools.partial(self._ready, which, index))
            for index, parameter in enumerate(parameters)
        ]

    @property
    def bypassed(self) -> bool:
        """Return whether gradients of this step came without a synchronised forward.

        The script then calls the module inside of the wrapper. Once the reducer has rebuilt its buckets, gradients that are there
        count as this step's: they may be older, as those of a model that this step does not train.
        """
        return not self._averages and (self._got_gradients or (not self._hooks and self._has_gradients()))

    def _has_gradients(self) -> bool:
        there = (ref() for ref in self._parameters)
        return any(parameter is not None and parameter.grad is not None for parameter in there)

    def step_begins(self) -> None:
        self._got_gradients = False
        self._averages = False

    def _ready(self, which: Callable[[], DistributedDataParallel | None], index: int, _parameter: torch.Tensor) -> None:
        self._got_gradients = True
        ddp = which()
        if ddp is None or not ddp.require_backward_grad_sync:
            return
        if not ddp.static_graph:
            if index not in self.indices:
                self.indices.append(index)
        elif self.forwards == _SETTLED:
            if index in self.indices:  # what is used several times is ready at the last of them
                self.indices.remove(index)
            self.indices.append(index)

    def forward_begins(self, ddp: DistributedDataParallel) -> None:
        """Note a synchronised forward. Where it is due, give the wrapper a new reducer.

        In the forward after a static graph's second backward all reducers change their layout.
        """
        if not (ddp.require_backward_grad_sync and torch.is_grad_enabled()):
            return
        self._averages = True
        if not ddp.static_graph:
            return
        if self.late and self.forwards == _SETTLED:
            new_reducer(ddp, layout(ddp, self))
            self.late = False
        self.forwards += 1

    def forget(self) -> None:
        """Forget the order: an interrupted backward is done again."""
        self.indices.clear()

    def be_at(self, forwards: int) -> None:
        """Go on from so many forwards of a static graph, whose reducer is made anew there."""
        if forwards < _SETTLED:
            self.indices.clear()
        self.late = forwards == 1
        self.forwards = forwards

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def layout(ddp: DistributedDataParallel, ready: ReadyOrder) -> Layout:
    """Return the layout that the next backward would use in an undisturbed run. Empty stands for the one of a new reducer."""
    rebuilt = str(ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", ""))
    if rebuilt:
        return [_indices(bucket) for bucket in rebuilt.split(",")]
    if not ready.indices or (ddp.find_unused_parameters and not ddp.static_graph):
        return []
    with as_built(ddp):
        parameters, sparse = ddp._build_params_for_reducer()
    config = getattr(ddp, "_bucket_config", None)
    limits: list[int] = []
    if config is None:
        # before torch 2.13: a size that the script has chosen is the first bucket's, too
        by_default = getattr(ddp, "bucket_bytes_cap_default", True)
        first_bytes = dist._DEFAULT_FIRST_BUCKET_BYTES if by_default else ddp.bucket_bytes_cap
    else:
        _, limits = config.compute_bucket_size_limits(
            static_graph=ddp.static_graph, find_unused_parameters=ddp.find_unused_parameters
        )
        first_bytes = config.first_bucket_bytes_cap
    limits = list(limits) or [first_bytes, ddp.bucket_bytes_cap]
    unused = [i for i in range(len(parameters)) if i not in ready.indices]
    buckets: Layout = []
    for used in (ready.indices, unused):  # those that get no gradient have buckets of their own, the last ones
        if used:
            tensors = [parameters[i] for i in used]
            places = list(range(len(used)))
            made, _ = dist._compute_bucket_assignment_by_size(tensors, limits, [sparse[i] for i in used], places)
            buckets += [[used[place] for place in bucket] for bucket in made]
    return buckets


@dataclass(frozen=True)
class KnownLayout:
    """The layout of a wrapper at a boundary."""

    layout: Layout
    rebuilt: bool
    """Whether its reducer has rebuilt its buckets, and so keeps them."""
    forwards: int = 0
    """ReadyOrder.forwards, but at most the number from which on nothing changes any more."""


Known = dict[int, KnownLayout]
"""Layouts by the wrapper's number, as in Wrappers."""
_NOTHING = KnownLayout([], False)


class Layouts:
    """The layout of each wrapper at the latest boundaries: in the middle of a step a reducer must not be asked.

    A rebuild that a failure interrupts leaves the reducer half done; reading it then ends the process.
    """

    def __init__(self) -> None:
        self.wrappers = Wrappers()
        self._known: dict[int, Known] = {}
        self._settled: Known | None = None
        """The latest known layouts, if nothing changes in them any more."""
        self._ready: weakref.WeakKeyDictionary[DistributedDataParallel, ReadyOrder] = weakref.WeakKeyDictionary()
        self._new: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        """Wrappers whose reducer a migration has made anew, and that has not rebuilt its buckets."""
        self._is_half_done = False
        """Whether a rebuild has failed: the reducers must not be asked until they are made anew."""
        self.bypassed: list[DistributedDataParallel] = []
        """Wrappers that did not average the gradients of the step whose gate was passed last."""

    def built(self, ddp: DistributedDataParallel) -> None:
        self.wrappers.add(ddp)
        self._ready[ddp] = ReadyOrder(ddp)

    def forward_begins(self, ddp: DistributedDataParallel) -> None:
        ready = self._ready.get(ddp)  # none where the wrapper is a copy
        if ready is not None:
            ready.forward_begins(ddp)

    def step_begins(self) -> None:
        for ready in self._ready.values():
            ready.step_begins()

    def gate_passed(self) -> None:
        self.bypassed = [ddp for ddp, ready in self._ready.items() if ready.bypassed]

    def rebuild(self) -> None:
        """Let reducers that were made anew rebuild their buckets now that their first backward is over.

        All ranks have come to this gate. Torch would do it in the next forward, which may be one that it must not be done in: an
        evaluation that switches gradients on. Where a rank is lost meanwhile, the migration makes all reducers anew.
        """
        for ddp in [*self._new]:
            try:
                if ddp.reducer._rebuild_buckets():
                    self._new.discard(ddp)
            except RuntimeError:
                self._new.clear()
                self._is_half_done = True

    def note(self, boundary: int) -> None:
        """Note the layouts at a boundary, or in the gate before it.

        The backward is complete there, and peers may be past the gate.
        """
        before = self._latest()
        wrappers = self.wrappers.numbered()
        settled = before is self._settled and before.keys() == {number for number, _ in wrappers}
        settled = settled or self._is_half_done
        now = before if settled else self._look(before, wrappers)
        kept = self._known.get(boundary - 1)
        self._known = {boundary: now} if kept is None else {boundary - 1: kept, boundary: now}

    def _look(self, before: Known, wrappers: Sequence[tuple[int, DistributedDataParallel]]) -> Known:
        now = {}
        for number, ddp in wrappers:
            rebuilt = _has_rebuilt(ddp)
            ready = self._ready[ddp]
            carried = before.get(number, _NOTHING).layout
            # Until it has rebuilt its buckets itself it has those that it was made with: every rank knows the same ones then.
            present = layout(ddp, ready) if rebuilt or not carried else carried
            now[number] = KnownLayout(present, rebuilt, min(ready.forwards, _SETTLED))
            if rebuilt:
                ready.close()
                self._new.discard(ddp)
        if all(known.rebuilt for known in now.values()):
            self._settled = now
        return now

    def adopt(self, target: int, given: Known) -> None:
        """Take the layouts that a joiner's new reducers were given: the reducers cannot tell them."""
        self._known = {target: {number: given.get(number, _NOTHING) for number, _ in self.wrappers.numbered()}}
        self._be_at(self._known[target])

    def migrated(self, target: int) -> None:
        """Note that a migration was committed: every reducer rebuilds its buckets once more, into the same layout."""
        known = self._known.get(target, self._latest())
        self._known = {target: {number: replace(k, rebuilt=False) for number, k in known.items()}}
        if target == 0:
            for ready in self._ready.values():
                ready.forget()
        self._be_at(self._known[target])

    def _be_at(self, known: Known) -> None:
        """Note that all reducers were made anew, with these layouts."""
        self._is_half_done = False
        self._new = weakref.WeakSet(ddp for _, ddp in self.wrappers.numbered() if not ddp.static_graph)
        for number, ddp in self.wrappers.numbered():
            if ddp.static_graph and number in known:
                self._ready[ddp].be_at(known[number].forwards)

    def as_text(self, target: int) -> str:
        """Return the layouts, as text, for a joiner that enters at boundary `target`."""
        known = self._known.get(target, self._latest())
        return json.dumps({number: [k.layout, k.forwards] for number, k in known.items()})

    def prepare_survivor(self, target: int) -> None:
        """Make the reducers ready for the next backward, in the layout of boundary `target`.

        Called after an interrupted or a finished backward.
        """
        known = self._known.get(target, self._latest())
        for number, ddp in self.wrappers.numbered():
            there = known.get(number, _NOTHING)
            if ddp.static_graph:
                _static_reducer(ddp, there)
            else:
                _begin_again(ddp, there.layout if target > 0 else [])

    def abandoned(self) -> None:
        """Make the reducers ready again after an exchange of communicators that came to nothing: in all ranks, or in none."""
        known = self._latest()
        for number, ddp in self.wrappers.numbered():
            if ddp.static_graph and number in known:
                _static_reducer(ddp, known[number])
            else:
                _begin_again(ddp, known.get(number, _NOTHING).layout)
        self._be_at(known)

    def _latest(self) -> Known:
        return self._known[max(self._known)] if self._known else {}


def _begin_again(ddp: DistributedDataParallel, layout: Layout) -> None:
    """Make the reducer ready for the next backward, in this layout.

    Every reducer rebuilds its buckets in the step after a migration, and gradients may become ready in another order by now. A
    reducer that was kept would not tell of that, since its logging data has the first rebuild for good: so it is made anew.
    """
    if ddp.find_unused_parameters:
        ddp.reducer._reset_state()  # it has never rebuilt its buckets
    else:
        new_reducer(ddp, layout)


def prepare_joiner(wrappers: Wrappers, text: str, target: int) -> Known:
    """Make reducers on the new generation's communicators, in a survivor's layout. Return the layouts."""
    told = json.loads(text).items() if text else ()
    given = {int(number): KnownLayout(buckets, False, forwards) for number, (buckets, forwards) in told}
    if target == 0:
        given = dict.fromkeys(given, _NOTHING)
    for number, ddp in wrappers.numbered():
        there = given.get(number, _NOTHING)
        if ddp.static_graph and (number in given or target == 0):
            _static_reducer(ddp, there)
        elif ddp.static_graph:
            raise UnsupportedError("no rank has told the layout of DistributedDataParallel with static_graph=True")
        else:
            new_reducer(ddp, there.layout)
    return given


def _static_reducer(ddp: DistributedDataParallel, there: KnownLayout) -> None:
    if there.forwards >= _SETTLED and not there.layout:
        raise UnsupportedError("the layout of DistributedDataParallel with static_graph=True is not known")
    new_reducer(ddp, there.layout if there.forwards >= _SETTLED else [])


def _has_rebuilt(ddp: DistributedDataParallel) -> bool:
    return bool(ddp._get_ddp_logging_data().get("rebuilt_per_bucket_param_indices", ""))
