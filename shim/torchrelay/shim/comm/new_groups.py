"""Process groups that the script makes. To make one is a collective of all ranks: it is recorded, answered and repeated as such."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed as dist

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.process_groups import agent_store, gloo_constructor, process_group
from torchrelay.shim.backends import registry
from torchrelay.shim.comm.collective_call import CollectiveCall
from torchrelay.shim.comm.collectives import DEFAULT_GROUP, NEW_GROUP, Collectives
from torchrelay.shim.comm.generations.communicators import Communicators
from torchrelay.shim.comm.generations.connecting import connected

_ARGUMENTS = ("ranks", "timeout", "backend", "pg_options", "use_local_synchronization", "group_desc", "device_id")
"""Of `torch.distributed.new_group`, in their order (torch 2.13)."""
_OF_DEFAULT = (
    *("backend", "init_method", "timeout", "world_size", "rank", "store", "group_name", "pg_options", "device_id"),
)
"""Of `torch.distributed.init_process_group`, the same."""


class NewGroups:
    def __init__(
        self, collectives: Collectives, comms: Communicators, comes_through: Callable[[Exception], bool]
    ) -> None:
        """Begin. `comes_through`: whether an exception goes on to the script, since ranks are to come together again.

        After any other one of ours training goes on without protection, and the group stays.
        """
        self._comes_through = comes_through
        self._collectives = collectives
        self._comms = comms
        self._placeholder = ""
        """The name of the group that is being made, as long as another one without peers is in its place."""

    def make(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Make a group as `torch.distributed.new_group` does. Without peers it communicates with no other rank.

        Raises StateMismatchError where the others have made it and this rank cannot be connected any more.
        """
        asked = dict(zip(_ARGUMENTS, args)) | kwargs
        name, _ = process_group.named_or_default(None)
        return self._make(
            CollectiveCall(NEW_GROUP, name, functools.partial(original, *args, **kwargs), None, objects=False),
            functools.partial(_without_peers, original, asked),
        )

    def make_default(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Make a default group where an earlier one was destroyed, as `torch.distributed.init_process_group` does.

        Raises as `make`. Its members meet in a store of ours: the script's has what members of the earlier group have said under
        the same name, and may be lost with the process that serves it.
        """
        comms = self._comms
        asked = _asked(args, kwargs)
        named = {name: value for name, value in asked.items() if name not in ("init_method", "store")}
        named |= {"rank": comms.rank, "world_size": comms.world_size}

        def real() -> Any:
            original(**named, store=comms.store_of_default())
            return dist.group.WORLD

        self._make(
            CollectiveCall(DEFAULT_GROUP, str(process_group.named_so_far()), real, None, objects=False),
            functools.partial(self.default_without_peers, original, args, kwargs),
        )

    def default_without_peers(
        self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, first: bool = False
    ) -> Any:
        """Make a default group that communicates with nobody, and names itself as the one that was asked for.

        `first`: the script's first one; where its store outlives ranks, it has the same one as the others.
        """
        asked = _asked(args, kwargs)
        rank = self._comms.rank
        world_size = self._comms.world_size
        backend = asked.get("backend")
        device = asked.get("device_id")
        by_environ = first and asked.get("store") is None and asked.get("init_method") in (None, "env://")
        store = agent_store.of_default_group(os.environ) if by_environ else None
        process_group.init_fake(rank, world_size, backend, device, original, registry.unconnected, store)
        return dist.group.WORLD

    def has_same_ranks(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Return whether these arguments of `init_process_group` ask for a group of the job's ranks, each with its own number."""
        asked = _asked(args, kwargs)
        comms = self._comms
        return (_number(asked, "rank"), _number(asked, "world_size")) == (comms.rank, comms.world_size)

    def _make(self, call: CollectiveCall, without_peers: Callable[[], Any]) -> Any:
        """Make a group. A rank that is interrupted in it has a group without peers instead, until ranks have come together again.

        So a rank that has finished it is connected with this process, too. Where no rank has, all make it anew.
        """
        before = process_group.group_names()
        making = call.function
        if not self._collectives.sees_calls():
            return self._real(making, before)
        placeholder: list[Any] = []

        def put_placeholder() -> None:
            placeholder[:] = [without_peers()]
            self._placeholder = process_group.name_if_known(placeholder[0])

        def anew() -> Any:
            process_group.forget_later(before)
            placeholder.clear()
            try:
                return self._real(making, before)
            except RuntimeError:
                put_placeholder()
                raise

        call.function = anew
        if self._collectives.is_answering():
            put_placeholder()
        try:
            made = self._collectives.call(call)
            if made is None and not self._collectives.is_answering():
                self._check_connected(bool(placeholder))
        except BaseException as error:
            if not isinstance(error, Exception) or self._comes_through(error):
                process_group.forget_later(before)
            raise
        finally:
            self._placeholder = ""
        return placeholder[0] if made is None else made

    def _check_connected(self, has_placeholder: bool) -> None:
        if not has_placeholder or self._placeholder in self._comms.now.incomplete:
            raise StateMismatchError("the other ranks have made a process group that this one was interrupted in")

    def check_incomplete(self, others: Mapping[str, Sequence[Any]]) -> None:
        """Raise StateMismatchError where a joiner has groups that were not connected: it must not use them, and would not notice.

        `others`: what other ranks have finished and this process has not, by group.
        """
        for name in sorted(self._comms.now.incomplete - {self._placeholder}):
            if not others.get(name):
                raise StateMismatchError(f"another rank does not have process group {name!r}, which this process is in")

    def _real(self, making: Callable[[], Any], before: process_group.GroupNames) -> Any:
        try:
            now = self._comms.now
            with self._comms.breaking.connecting(now), gloo_constructor.called_by(functools.partial(connected, now)):
                return making()
        except BaseException:
            process_group.forget_later(before)  # half made; it will be made again under the same name
            raise


def _asked(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return dict(zip(_OF_DEFAULT, args)) | kwargs


def _number(asked: dict[str, Any], name: str) -> int:
    given = asked.get(name)
    return int(os.environ.get(name.upper(), -1)) if given in (None, -1) else int(given)


def _without_peers(original: Callable[..., Any], asked: dict[str, Any]) -> Any:
    backend = process_group.asked_or_default(asked.get("backend"))
    device = asked.get("device_id")
    # Options and device are those of a library that is not there.
    of_fake = {**asked, "backend": process_group.fake_for(backend), "pg_options": None}
    of_fake.pop("device_id", None)
    with process_group.fakes():
        group = original(**of_fake)
    process_group.name_if_member(group, backend, device, registry.unconnected)
    return group
