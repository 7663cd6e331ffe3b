"""The commit gate: a barrier of all ranks over TCP connections of our own, dissemination style.

In round k a rank tells the one 2^k above it that it and all that it has heard of are here, and waits to be told the same by
the one 2^k below; after ceil(log2(world size)) rounds everybody knows of everybody (Hensgen, Finkel, Manber: Two Algorithms
for Barrier Synchronization, 1988). A barrier of gloo does the same, but wakes two more threads for it.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.comm.gate_links import GateCall, GateListener, Link

_MESSAGE = struct.Struct("<qqq")
"""Generation, number of the gate, and flags of everybody heard of so far."""
_AGREED = 1
_YES = 2
_BUSY = 4
"""Whether all said the same, whether one said yes, and whether one said that it is busy."""
_OF_ANY = _YES | _BUSY


@dataclass
class _Pass:
    """One way through all rounds, which can be left in the middle and gone on with."""

    generation: int
    number: int
    flags: int
    round: int = 0
    sent: bool = False


class Gate:
    """The connections of one generation; `ups[k]` and `downs[k]` are those of round k."""

    def __init__(self, ups: list[Link], downs: list[Link]) -> None:
        self._rounds = list(zip(ups, downs))
        self._open: _Pass | None = None
        """A meeting that was left early."""

    def wait(self, generation: int, number: int, *, yes: bool = False, busy: bool = False) -> bool:
        """Return when every rank has called it with the same numbers; -1 for a rank that has lost count.

        True, on all ranks alike, if one of them said `yes` and none that it is `busy`.

        Raises RuntimeError when a connection is lost, StateMismatchError on all ranks when one said something else.
        """
        through = _Pass(generation, number, _AGREED | (_YES if yes else 0) | (_BUSY if busy else 0))
        self._go_through(through, None)
        return through.flags & _OF_ANY == _YES

    def meet(self, generation: int, number: int, yes: bool, patience_s: float | None) -> bool | None:
        """Meet all ranks apart from the gates. Return whether any rank said `yes`.

        Each rank calls it between the same two gates. None where not all were there in time: it is to be called again then, before
        the next gate, and without `patience_s`.
        """
        if self._open is None:
            self._open = _Pass(generation, -2 - number, _AGREED | (_YES if yes else 0))
        met = self._open
        if not self._go_through(met, None if patience_s is None else time.monotonic() + patience_s):
            return None
        self._open = None
        return bool(met.flags & _YES)

    def _go_through(self, p: _Pass, until_s: float | None) -> bool:
        """Go through all rounds. Return False if they were not done by `until_s`."""
        try:
            while p.round < len(self._rounds):
                up, down = self._rounds[p.round]
                if not p.sent:
                    up.say(_MESSAGE.pack(p.generation, p.number, p.flags))
                    p.sent = True
                if until_s is not None and not _is_there(down, until_s):
                    return False
                generation, number, flags = _MESSAGE.unpack(down.hear(_MESSAGE.size))
                if generation != p.generation or (number != p.number and -1 not in (p.number, number)):
                    flags &= ~_AGREED
                p.flags = (p.flags & flags & _AGREED) | ((p.flags | flags) & _OF_ANY)
                p.round = p.round + 1
                p.sent = False
        except OSError as e:
            raise RuntimeError(f"torchrelay: Connection closed in the gate of step {p.number}: {e}") from e
        if not p.flags & _AGREED:
            raise StateMismatchError(f"ranks disagree on generation and step: {p.generation} and {p.number} here")
        return True

    def let_go(self) -> None:
        """Stop waiting in it, from any thread: this rank gets a RuntimeError. Peers do not notice."""
        for _, down in self._rounds:
            with contextlib.suppress(OSError):  # closed meanwhile
                down.shutdown(socket.SHUT_RD)

    def close(self) -> None:
        for pair in self._rounds:
            for connection in pair:
                connection.close()


def _is_there(connection: socket.socket, until_s: float) -> bool:
    """Wait until something can be read from the connection, and return whether that is so by `until_s`."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(max(until_s - time.monotonic(), 0.0) * 1e3))


def distances(world_size: int) -> list[int]:
    """Return how far the peers of each round are away."""
    return [1 << k for k in range((world_size - 1).bit_length())]


def key_of(rank: int) -> str:
    """Return the key under which the store has how a rank's gate is reached. Its value is empty if it cannot be."""
    return f"gate/{rank}"


def connect(
    rank: int,
    world_size: int,
    store: Any,
    address: str,
    listener: GateListener,
    generation: int,
    secret: bytes,
    deadline_s: Callable[[], float],
) -> Gate:
    """Meet the peers through `store`. `secret`: of the generation, as all of its ranks were told by the controller.

    `deadline_s`: seconds that are left. Raises RuntimeError when a peer does not come, or does not hold the secret.
    """
    calls: dict[int, GateCall] = {}
    ups: dict[int, Link] = {}
    downs: dict[int, Link] = {}
    rounds = distances(world_size)
    try:
        store.set(key_of(rank), b"%s %d %s" % (address.encode(), listener.port, listener.nonce.hex().encode()))
        for number, distance in enumerate(rounds):
            peer = (rank + distance) % world_size
            told = store.get(key_of(peer)).decode().split()
            if len(told) != 3:
                raise RuntimeError(f"torchrelay: rank {peer} could not connect its gate")
            where = (told[0], int(told[1]))
            nonce = bytes.fromhex(told[2])
            left_s = max(deadline_s(), 0.1)
            calls[number] = GateCall(where, nonce, secret, generation, rank, peer, number, left_s)
        while len(downs) < len(rounds):
            caller = listener.accept(max(deadline_s(), 0.1))
            if caller is not None and downs.setdefault(*caller) is not caller[1]:
                caller[1].close()  # somebody says a hello again that he has heard
        # This must not come before: a peer answers while it accepts, and it calls first, too.
        for number, call in calls.items():
            ups[number] = call.answered(max(deadline_s(), 0.1))
    except (OSError, ValueError, RuntimeError) as e:
        for call in calls.values():
            call.close()
        for link in (*ups.values(), *downs.values()):
            link.close()
        if isinstance(e, RuntimeError):
            raise
        raise RuntimeError(f"torchrelay: Connection closed while the gate was connected: {e}") from e
    finally:
        listener.close()
    return Gate([ups[k] for k in range(len(rounds))], [downs[k] for k in range(len(rounds))])
