"""The communicators of this rank: one generation after the other inside the same ProcessGroup objects.

Beside the script's groups there are connections of our own, which the script never sees: the commit gate and the check of a
new generation run over them.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.protocol.machine.addresses import bind_address
from torchrelay.protocol.names import GATE_SECRET_BYTES
from torchrelay.shim.adapters import process_group as groups
from torchrelay.shim.adapters import sockets
from torchrelay.shim.adapters.old_backends import OldBackends
from torchrelay.shim.comm import gate, group_agreement
from torchrelay.shim.comm.forgotten_waits import ForgottenWaits
from torchrelay.shim.comm.gate import Gate
from torchrelay.shim.comm.gate_links import GateListener
from torchrelay.shim.comm.peer_links import Links

CONNECT_TIMEOUT = timedelta(seconds=60)
FIRST_ATTEMPT_S = 1.0
"""To reach a store; each further one may take twice as long, since a large job's store is slow to answer all of its ranks."""


@dataclass(frozen=True)
class _Before:
    """What a group had before the last exchange, to which an abandoned one goes back."""

    group: Any
    type: Any
    record: Any


@dataclass
class Generation:
    number: int
    gate: Gate | None = None
    stores: list[Any] = field(default_factory=list)
    inodes: set[str] = field(default_factory=set)
    older: weakref.WeakSet[threading.Thread] = field(default_factory=weakref.WeakSet)
    """Threads that ran when it began: what they were in the middle of, a new process knows nothing of."""


class Communicators:
    def __init__(self, rank: int, world_size: int, address: str) -> None:
        """`address`: where peers reach this process."""
        self.rank, self.world_size, self.address = rank, world_size, address
        self.now = Generation(0)
        self._previous: tuple[Generation, list[_Before]] | None = None
        self._types: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        """Under which a group has its present communicator, if not the one that torch registers its first one under."""
        self._numbers: list[int] = []
        """Of the backend types under which groups may have a communicator of ours."""
        self._building: set[str] | None = None
        self._listener: GateListener | None = None
        self._lock = threading.Lock()
        self.waits = ForgottenWaits()
        self.links = Links()
        try:
            self._old: OldBackends | None = OldBackends()
        except (AttributeError, OSError, ValueError):
            self._old = None  # they pile up, and torch's numbers for them are used up in the end

    @contextmanager
    def connecting(self) -> Iterator[None]:
        """Sockets that are opened meanwhile belong to the generation, and are shut down when it is broken."""
        before = set(sockets.tcp_sockets().values())
        with self._lock:
            self._building = before
        try:
            yield
        finally:
            with self._lock:
                self._building = None
                self.now.inodes |= set(sockets.tcp_sockets().values()) - before

    def own_sockets(self) -> set[sockets.Inode]:
        """Of the present generation: its groups', its gate's and its store's."""
        with self._lock:
            return set(self.now.inodes)

    def connect_gate(self, store: Any, secret: bytes) -> None:
        """The gate of the first generation; `secret`: as in Protect. Raises UnsupportedError for a group that is not gloo."""
        for group in groups.groups():
            if groups.backend_name(group) != "gloo":
                raise UnsupportedError(
                    f"the process group uses {groups.backend_name(group)}; only gloo can be migrated yet"
                )
        try:
            with self.connecting():
                self._connect_gate(_first_gate(store), secret)
        except Exception:
            decline_gate(store, self.rank)
            raise

    def _connect_gate(self, store: Any, secret: bytes) -> None:
        if len(secret) < GATE_SECRET_BYTES:
            raise UnsupportedError(
                "the controller sends no secret for the gate's connections: it is of an earlier version than this process"
            )
        deadline, generation = time.monotonic() + CONNECT_TIMEOUT.total_seconds(), self.now.number
        listener = GateListener(bind_address(self.address), secret, generation, self.rank)
        with self._lock:
            self._listener = listener
        try:
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
        finally:
            with self._lock:
                self._listener = None

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
        """Connects every group anew, with the same ranks in the same order, through the store at `host:port`.

        `secret`: as in Rebuild.
        `is_over(generation)`: whether a newer one was announced, or this one abandoned. Raises RuntimeError when peers do not
        come or the generation is broken meanwhile, StateMismatchError when this process `joins` and is in other groups than they.
        """
        self.waits.renewed(generation)
        before: list[_Before] = []
        self._previous = (self.now, before)
        self.now = Generation(generation, older=weakref.WeakSet(threading.enumerate()))
        number = groups.unused_number(self._numbers)
        self._numbers.append(number)
        backend_type = groups.type_of(number)
        with self.connecting():
            store = join_store(host, port, lambda: is_over(generation))
            self.now.stores.append(store)
            if is_over(generation):  # from here on whoever hears of it shuts this store's socket
                raise RuntimeError(f"torchrelay: generation {generation} is over before its communicators stand")
            prefix = f"torchrelay/{generation}"
            of_all = dist.PrefixStore(prefix, store)
            self._connect_gate(of_all, secret)
            group_agreement.say(of_all, self.rank, groups.described())
            if joins:
                group_agreement.check(of_all, self.rank, self.world_size)
            for group in sorted(groups.groups(), key=groups.name_of):  # in an order that is the same on all ranks
                ranks = groups.group_ranks(group)
                own = dist.PrefixStore(f"{prefix}/{groups.name_of(group)}", store)
                timeout = groups.timeout_of(group)
                backend = groups.new_gloo(own, ranks.index(self.rank), len(ranks), timeout)
                before.append(_Before(group, self._types.get(group, groups.first_type()), groups.record_of(group)))
                self._types[group] = backend_type
                groups.install(group, backend, backend_type, own)

    @staticmethod
    def timeout_s() -> float:
        """Return the timeout of the default process group's collectives; 0 where there is no such group."""
        world = dist.group.WORLD
        return 0.0 if world is None else groups.timeout_of(world).total_seconds()

    @staticmethod
    def group_names() -> set[str]:
        """Of the groups that this rank is a member of."""
        return {groups.name_of(group) for group in groups.groups()}

    def go_back(self) -> None:
        """An abandoned exchange: the communicators of the generation before are whole and used again."""
        if self._previous is None:
            return
        sockets.shut_down(set(self.now.inodes))
        if self.now.gate is not None:
            self.now.gate.close()
        self.now, before = self._previous
        self._previous = None
        for had in before:
            self._types[had.group] = had.type
            groups.reinstall(had.group, had.type, had.record)

    def break_previous(self) -> None:
        """In an exchange that all have agreed on: who still waits in the communicators before waits in vain."""
        if self._previous is not None:
            sockets.shut_down(set(self._previous[0].inodes))
            self.waits.free_all()

    def committed(self) -> None:
        if self._previous is not None and self._previous[0].gate is not None:
            self._previous[0].gate.close()
        self._previous = None
        self._forget_old()

    def _forget_old(self) -> None:
        """Threads and connections of communicators that nobody uses any more go back to the system."""
        if self._old is None or not self.waits.none_waits():
            return
        for group in groups.groups():
            if group in self._types and self._old.forget(group):
                del self._types[group]
        if not any(group in self._types for group in groups.groups()):
            self._numbers.clear()

    def break_new(self, generation: int) -> int:
        """From any thread: what waits in the communicators of an abandoned exchange fails now; those before it stay whole."""
        with self._lock:
            if self.now.number != generation or self._previous is None:
                return 0
            wanted = set(self.now.inodes)
            if self._building is not None:
                wanted |= set(sockets.tcp_sockets().values()) - self._building
            if self._listener is not None:
                self._listener.wake()
        return sockets.shut_down(wanted)

    def break_all(self) -> int:
        """From any thread: whatever this rank and its peers wait for in any communicator fails now. Returns how many sockets."""
        with self._lock:
            wanted = set(self.now.inodes)
            if self._previous is not None:
                wanted |= self._previous[0].inodes
            if self._building is not None:
                wanted |= set(sockets.tcp_sockets().values()) - self._building
            if self._listener is not None:
                self._listener.wake()
        return sockets.shut_down(wanted)

    def gate(self, number: int, *, yes: bool = False, busy: bool = False) -> bool:
        """As Gate.wait: returns when every rank is at its gate `number`. Raises RuntimeError when the generation is broken."""
        assert self.now.gate is not None
        return self.now.gate.wait(self.now.number, number, yes=yes, busy=busy)

    def meet(self, number: int, yes: bool, patience_s: float | None) -> bool | None:
        """As Gate.meet. Raises RuntimeError when the generation is broken."""
        assert self.now.gate is not None
        return self.now.gate.meet(self.now.number, number, yes, patience_s)

    def verify(self, target: int) -> None:
        """Every rank of the new generation goes to the same boundary. Raises StateMismatchError, RuntimeError."""
        self.gate(target)


def _first_gate(store: Any) -> Any:
    return dist.PrefixStore("torchrelay/0", store)


def decline_gate(store: Any, rank: int) -> None:
    """The others need not wait for this rank at the first generation's gate."""
    _first_gate(store).set(gate.key_of(rank), "")


def serve_store() -> tuple[Any, int]:
    """A store for the next generation, hosted by this process; returns it with its port."""
    store = dist.TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=CONNECT_TIMEOUT)
    return store, int(store.port)


def join_store(host: str, port: int, over: Callable[[], bool] = lambda: False) -> Any:
    """Raises RuntimeError when nobody serves it, and when it is `over` with the generation whose store it is.

    torch tries for as long as it is told to, and nothing can stop it: where the host is lost, a rank would not come to a stand.
    """
    end_s, patience_s = time.monotonic() + CONNECT_TIMEOUT.total_seconds(), FIRST_ATTEMPT_S
    while True:
        try:
            attempt = timedelta(seconds=patience_s)
            store = dist.TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=attempt)
        except RuntimeError:
            patience_s = min(2 * patience_s, end_s - time.monotonic())
            if patience_s <= 0 or over():
                raise
        else:
            store.set_timeout(CONNECT_TIMEOUT)
            return store


def is_communication_failure(error: BaseException) -> bool:
    """Whether gloo says that a peer went away; its errors have no type of their own, and wrappers give them new ones."""
    if error.__cause__ is not None and is_communication_failure(error.__cause__):
        return True
    text = str(error)
    marks = (
        "gloo",
        "Connection closed",
        "Connection reset",
        "Broken pipe",
        "Socket closed",
        "Software caused connection abort",
    )
    return isinstance(error, RuntimeError) and (isinstance(error, dist.DistError) or any(m in text for m in marks))
