"""Process groups that the script makes. To make one is a collective of all ranks: it is recorded, answered and repeated as such."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters import process_group
from torchrelay.shim.backends import registry
from torchrelay.shim.comm.collectives import NEW_GROUP, CollectiveCall, Collectives
from torchrelay.shim.comm.communicators import Communicators

_ARGUMENTS = ("ranks", "timeout", "backend", "pg_options", "use_local_synchronization", "group_desc", "device_id")
"""Of `torch.distributed.new_group`, in their order (torch 2.13)."""


class NewGroups:
    def __init__(self, collectives: Collectives, comms: Communicators) -> None:
        self._collectives, self._comms = collectives, comms

    def make(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """As `torch.distributed.new_group`. Without peers it makes a group that communicates with nobody.

        Raises StateMismatchError where the others have made it and this rank was interrupted before it had.
        """
        real = functools.partial(self._real, functools.partial(original, *args, **kwargs))
        if not self._collectives.sees_calls():
            return real()
        name, _ = process_group.named_or_default(None)
        made = self._collectives.call(CollectiveCall(NEW_GROUP, name, real, None, objects=False))
        if made is not None:
            return made
        if not self._collectives.is_answering():
            raise StateMismatchError("the other ranks have made a process group that this one was interrupted in")
        return self._without_peers(original, dict(zip(_ARGUMENTS, args)) | kwargs)

    @staticmethod
    def _without_peers(original: Callable[..., Any], asked: dict[str, Any]) -> Any:
        backend, device = process_group.asked_or_default(asked.get("backend")), asked.get("device_id")
        # Options and device are those of a library that is not there.
        of_fake = {**asked, "backend": process_group.fake_for(backend), "pg_options": None}
        of_fake.pop("device_id", None)
        with process_group.fakes():
            group = original(**of_fake)
        process_group.name_if_member(group, backend, device, registry.alone)
        return group

    def _real(self, original: Callable[[], Any]) -> Any:
        before = process_group.group_names()
        try:
            with self._comms.connecting():
                return original()
        except BaseException:
            process_group.forget_later(before)  # half made; it will be made again under the same name
            raise
