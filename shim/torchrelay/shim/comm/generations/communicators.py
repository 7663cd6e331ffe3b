"""The communicators of this rank: one generation after the other inside the same ProcessGroup objects.

Beside the script's groups there are connections of our own, which the script never sees: the commit gate and the check of a
new generation run over them.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.protocol.logs.log_lines import LogLines
from torchrelay.protocol.machine.addresses import bind_address
from torchrelay.protocol.names import GATE_SECRET_BYTES
from torchrelay.shim.adapters.process_groups import process_group as groups
from torchrelay.shim.adapters.process_groups import sockets
from torchrelay.shim.adapters.process_groups.old_backends import OldBackends
from torchrelay.shim.backends import registry
from torchrelay.shim.backends.backend import Backend
from torchrelay.shim.backends.forgotten_waits import ForgottenWaits
from torchrelay.shim.comm import gate
from torchrelay.shim.comm.gate_links import GateListener
from torchrelay.shim.comm.generations import generation_store, group_agreement
from torchrelay.shim.comm.generations.breaking import Breaking, free
from torchrelay.shim.comm.generations.connecting import connected
from torchrelay.shim.comm.generations.generation import Generation
from torchrelay.shim.comm.peer_links import PeerLinks

SETTLE_S = 20.0
"""For aborts to be over, and for the device to have done what was queued."""


@dataclass(frozen=True)
class _Before:
    """What a group had before the last exchange, to which an abandoned one goes back."""

    group: Any
    types: dict[torch.device, Any]
    record: Any


class Communicators:
    def __init__(
        self,
        rank: int,
        world_size: int,
        address: str,
        log: LogLines,
        stuck: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """Begin with generation 0. `address`: where peers reach this process. `stuck`: as in Breaking."""
        self.rank = rank
        self.world_size = world_size
        self.address = address
        self.now = Generation(0)
        self._previous: tuple[Generation, list[_Before]] | None = None
        self._types: weakref.WeakKeyDictionary[Any, dict[torch.device, Any]] = weakref.WeakKeyDictionary()
        """Under which a group has its present communicators, if not those that torch registers its first ones under."""
        self._libraries: tuple[int, tuple[Backend, ...]] | None = None
        """After how many groups were made, those of them whose collectives run on a device."""
        self._numbers: list[int] = []
        """Of the backend types under which groups may have a communicator of ours."""
        self._lock = threading.Lock()
        """Held, too, while a group's communicators are exchanged: torch reads and writes them without Python's lock."""
        self._log = log
        self.breaking = Breaking(self._lock, self._of_device, log, stuck)
        self.waits = ForgottenWaits(log)
        self.lifted = ""
        """Why nobody waits for others at a gate any more; empty as long as all do."""
        self.links = PeerLinks()
        try:
            self._old: OldBackends | None = OldBackends()
        except (AttributeError, OSError, ValueError):
            self._old = None  # they pile up, and torch's numbers for them are used up in the end

    def own_sockets(self) -> set[sockets.Inode]:
        """Return the sockets of the present generation: of its groups, its gate and its store."""
        with self._lock:
            return set(self.now.inodes)

    def connect_gate(self, store: Any, secret: bytes) -> None:
        """Connect the first gate. `secret`: as in Protect. Raises UnsupportedError for a group that cannot be moved."""
        registry.check_groups(groups.groups())
        self.now.stores.append(store)
        try:
            with self.breaking.connecting(self.now):
                self._connect_gate(generation_store.of_first(store), secret)
        except Exception:
            generation_store.decline_gate(store, self.rank)
            raise

    def _connect_gate(self, store: Any, secret: bytes) -> None:
        if len(secret) < GATE_SECRET_BYTES:
            raise UnsupportedError(
                "the controller sends no secret for the gate's connections: it is of an earlier version than this process"
            )
        deadline = time.monotonic() + generation_store.CONNECT_TIMEOUT.total_seconds()
        generation = self.now.number
        listener = GateListener(bind_address(self.address), secret, generation, self.rank)
        with self.breaking.listening(listener):
            self.now.gate = gate.connect(
                self.rank,
                self.world_size,
                store,
                self.address,
                listener,
                generation,
                secret,
                lambda: deadline - time.monotonic(),
            )

    def rebuild(
        self,
        generation: int,
        host: str,
        port: int,
        secret: bytes,
        is_over: Callable[[int], bool] = lambda generation: False,
        *,
        joins: bool = False,
    ) -> None:
        """Connect every group anew, with the same ranks in the same order, through the store at `host:port`.

        `secret`: as in Rebuild. `is_over(generation)`: whether a newer one was announced, or this one abandoned. Raises
        RuntimeError when peers do not come or the generation is broken meanwhile, StateMismatchError when this process `joins` and
        is in other groups than they.
        """
        self._settle()
        self.now.on_device = self._of_device(self.now)
        self.waits.renewed(generation)
        before: list[_Before] = []
        self._previous = (self.now, before)
        self.now = Generation(generation, older=weakref.WeakSet(threading.enumerate()))
        with self.breaking.connecting(self.now):
            store = generation_store.join_store(host, port, lambda: is_over(generation))
            self.now.stores.append(store)
            if is_over(generation):  # from here on whoever hears of it shuts this store's socket
                raise RuntimeError(f"torchrelay: generation {generation} is over before its communicators stand")
            prefix = f"torchrelay/{generation}"
            of_all = dist.PrefixStore(prefix, store)
            self._connect_gate(of_all, secret)
            own = groups.described()
            group_agreement.say(of_all, self.rank, own)
            assert self.now.gate is not None
            self.now.gate.wait(generation, -1)  # by now all have said it
            self.now.incomplete = group_agreement.incomplete(of_all, own)
            if joins:
                group_agreement.check(of_all, self.rank, self.world_size)
            types: dict[str, Any] = {}
            complete = (g for g in groups.groups() if groups.name_of(g) not in self.now.incomplete)
            for group in sorted(complete, key=groups.name_of):  # in an order that is the same on all ranks
                of_group = dist.PrefixStore(f"{prefix}/{groups.name_of(group)}", store)
                self._exchange(group, of_group, types)
            if joins:
                self._connect_alone(dist.PrefixStore(f"{prefix}/alone/{self.rank}", store), types)

    def _connect_alone(self, store: Any, types: dict[str, Any]) -> None:
        """Connect groups of this rank alone. Set-up has made them without communicators, so their futures had no results."""
        for group in filter(registry.is_known, groups.alone()):
            self._exchange(group, dist.PrefixStore(groups.name_of(group), store), types)

    def store_of_default(self) -> Any:
        """Return where the members of a further default process group meet. All ranks have to call it equally often."""
        self.now.defaults += 1
        return dist.PrefixStore(f"torchrelay/default/{self.now.defaults}", self.now.stores[-1])

    def _exchange(self, group: Any, store: Any, types: dict[str, Any]) -> None:
        """Exchange a group's communicators. `types`: under which this generation's of each library are registered."""
        assert self._previous is not None
        ranks = groups.group_ranks(group)
        record = groups.record_of(group)
        had = {d: groups.first_type(name) for d, name in self._names(group).items()}
        before = _Before(group, self._types.get(group, had), record)
        made: dict[torch.device, tuple[Any, Any]] = {}
        new: dict[str, Any] = {}
        for device, name in sorted(self._names(group).items(), key=lambda entry: str(entry[0])):
            backend = registry.named(name)
            if name not in new:
                present = group._get_backend(device)
                own = dist.PrefixStore(name, store)
                new[name] = self._connect(backend, own, ranks, present, _bound(group, device))
            if name not in types:
                types[name] = self._unused_type()
            made[device] = new[name], types[name]
        self._previous[1].append(before)
        self._types[group] = {device: kind for device, (_, kind) in made.items()}
        with self._lock:
            groups.install(group, made, store)

    def _connect(self, backend: Backend, store: Any, ranks: list[int], present: Any, device: torch.device) -> Any:
        place = ranks.index(self.rank)
        size = len(ranks)
        if not backend.on_device:
            return connected(self.now, lambda: backend.new(store, place, size, present))
        communicator = backend.new(store, place, size, present)
        with self._lock:
            self.now.on_device.append((backend, communicator))
            is_broken = self.now.broken
        if is_broken:
            raise self.now.failure()
        backend.connect(communicator, device)
        return communicator

    @staticmethod
    def _names(group: Any) -> dict[torch.device, str]:
        names = groups.backend_names(group)
        return {device: names[device.type] for device in groups.device_types(group)}

    def _unused_type(self) -> Any:
        number = groups.unused_number(self._numbers)
        self._numbers.append(number)
        return groups.type_of(number)

    def _settle(self) -> None:
        """Wait until nothing is under way any more in what was broken. Raises RuntimeError, DeviceLostError."""
        for backend in self._on_device():
            backend.await_freed(SETTLE_S)
            backend.check_device(current(torch.device("cuda")))

    def _on_device(self) -> tuple[Backend, ...]:
        """Return the libraries of this rank's groups whose collectives run on a device."""
        made = groups.named_so_far()
        if self._libraries is None or self._libraries[0] != made:
            found = {backend for group in groups.groups() for backend in registry.of_group(group).values()}
            self._libraries = made, tuple(backend for backend in found if backend.on_device)
        return self._libraries[1]

    def waits_on_device(self) -> bool:
        """Return, from any thread, whether a collective of this rank has begun on its device, and waits there for other ranks."""
        with self._lock:
            libraries = self._on_device()
        return any(backend.waits() for backend in libraries)

    def failure(self) -> str:
        """Return, from any thread, why a communicator on a device has failed by itself; empty where none has."""
        try:
            with self._lock:
                found = self._of_device(self.now)
        except (KeyError, RuntimeError):
            return ""  # the script makes or destroys a group at this moment
        return next(filter(None, (backend.failure(communicator) for backend, communicator in found)), "")

    def notes(self) -> tuple[str, ...]:
        """Return what the protection report says of this rank's communication."""
        return registry.notes(self._on_device())

    def leaves_garbage(self) -> bool:
        """Return whether collectives have been let go before they were done, on a device where no caller was told so."""
        return self.now.broken and self.have_device()

    def have_device(self) -> bool:
        """Return whether collectives of this rank run on a device."""
        return bool(self._on_device())

    def synchronize(self) -> None:
        """Return when the results are there of all collectives that the training thread has called.

        Those that run on a device may have been let go before: then they are garbage. Raises RuntimeError in this case.
        """
        generation = self.now
        libraries = self._on_device()
        for backend in libraries:
            backend.synchronize()
        if libraries and generation.broken:
            raise generation.failure()

    @staticmethod
    def group_names() -> set[str]:
        """Return the names of the groups that this rank is a member of."""
        return {groups.name_of(group) for group in groups.groups()}

    def go_back(self) -> None:
        """Use the communicators of the generation before again, which are whole: the exchange was abandoned."""
        if self._previous is None:
            return
        abandoned = self.now
        self.breaking.break_all([abandoned])
        if abandoned.gate is not None:
            abandoned.gate.close()
        self.now, before = self._previous
        self._previous = None
        with self._lock:
            for had in before:
                self._types[had.group] = had.types
                groups.reinstall(had.group, had.types, had.record)

    def break_previous(self) -> None:
        """Break the communicators before, in an exchange that all have agreed on: a thread that still waits there waits in vain."""
        if self._previous is not None:
            self.breaking.break_all([self._previous[0]])
            self.waits.free_all()

    def committed(self) -> None:
        self.now.on_device.clear()  # its groups have them
        if self._previous is not None:
            generation = self._previous[0]
            if generation.gate is not None:
                generation.gate.close()
            if not generation.broken:  # a planned move: nobody uses them any more, on any rank
                generation.breaks()
                free(generation.on_device, self._log)
        self._previous = None
        if self._are_freed():  # torch crashes where one is let go of while it is being aborted
            self._forget_old()

    def _are_freed(self) -> bool:
        """Wait for aborts to be over. One that is stuck keeps its memory; training goes on without it."""
        try:
            for backend in self._on_device():
                backend.await_freed(SETTLE_S)
        except RuntimeError as error:
            self._log.say(f"{str(error).removeprefix('torchrelay: ')}; it is left as it is")
            return False
        return True

    def _forget_old(self) -> None:
        """Give threads and connections of communicators that are not used any more back to the system."""
        if self._old is None or not self.waits.none_waits():
            return
        with self._lock:
            for group in groups.groups():
                if group in self._types and self._old.forget(group):
                    del self._types[group]
        if not any(group in self._types for group in groups.groups()):
            self._numbers.clear()

    def break_new(self, generation: int) -> int:
        """Break an abandoned exchange's communicators, from any thread, so that waits in them fail. Those before stay whole."""
        with self._lock:
            if self.now.number != generation or self._previous is None:
                return 0
        return self.breaking.break_all([self.now])

    def break_all(self) -> int:
        """Break all communicators, from any thread, so that waits of this rank and its peers fail. Return how many sockets."""
        previous = self._previous
        return self.breaking.break_all([self.now] if previous is None else [self.now, previous[0]])

    def _of_device(self, generation: Generation) -> list[tuple[Backend, Any]]:
        """Return the generation's communicators whose collectives run on a device; each once, though several devices may share it.

        As long as it is built, groups still have those of the generation before: these are that one's alone.
        """
        found = {id(communicator): (backend, communicator) for backend, communicator in generation.on_device}
        for group in groups.groups() if generation is self.now else ():
            for device, name in self._names(group).items():
                backend = registry.BACKENDS.get(name)
                communicator = group._get_backend(device)
                if backend is not None and backend.on_device:
                    found[id(communicator)] = backend, communicator
        before = self._previous[0].on_device if self._previous is not None and generation is self.now else ()
        for _, communicator in before:
            found.pop(id(communicator), None)
        return [*found.values()]

    def lift_gates(self, reason: str) -> None:
        """Let every thread that waits in a gate, or comes to one, go on at once. From any thread."""
        self.lifted = self.lifted or reason
        if self.now.gate is not None:
            self.now.gate.let_go()

    def gate(self, number: int, *, yes: bool = False, busy: bool = False) -> bool:
        """Wait as Gate.wait does: return when every rank is at its gate `number`, or once gates are lifted.

        Raises RuntimeError when the generation is broken.
        """
        assert self.now.gate is not None
        self.synchronize()
        try:
            return not self.lifted and self.now.gate.wait(self.now.number, number, yes=yes, busy=busy)
        except RuntimeError:
            if not self.lifted or self.now.broken:
                raise
            return False

    def meet(self, number: int, yes: bool, patience_s: float | None) -> bool | None:
        """Meet as Gate.meet does, or return False once gates are lifted. Raises RuntimeError when the generation is broken."""
        assert self.now.gate is not None
        try:
            return not self.lifted and self.now.gate.meet(self.now.number, number, yes, patience_s)
        except RuntimeError:
            if not self.lifted or self.now.broken:
                raise
            return False


def current(device: torch.device) -> torch.device:
    """Return the device of this type that this process uses."""
    return device if device.type == "cpu" else torch.device(device.type, torch.accelerator.current_device_index())


def _bound(group: Any, device: torch.device) -> torch.device:
    """Return the device that the group's communicator for this type of device is to use."""
    bound: torch.device | None = group.bound_device_id
    return bound if bound is not None and bound.type == device.type else current(device)
