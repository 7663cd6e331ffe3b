"""The donor: serves its tensors to the one peer that the controller named."""

from __future__ import annotations

import contextlib
import ipaddress
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping

import torch

from torchrelay.protocol.errors import ChannelClosedError, FrameError, RefusedError, TorchrelayError
from torchrelay.protocol.security.transfer_protection import FULL, INTEGRITY
from torchrelay.shim.transfer import layout, requests
from torchrelay.shim.transfer.channel import Channel
from torchrelay.shim.transfer.handshake import Identity, admit
from torchrelay.shim.transfer.lanes import Lanes
from torchrelay.shim.transfer.source import TensorSource

_HELLO_DEADLINE_S = 5.0
_MAX_CONNECTIONS = 64
_BACKLOG = 128


def _normal(address: str) -> str:
    """Return an address in one spelling: no zone, and IPv4 where it is IPv4 inside IPv6."""
    parsed = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(parsed, "ipv4_mapped", None)
    return str(mapped or parsed)


def _addresses(host: str) -> frozenset[str]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as e:
        raise RefusedError(f"the peer's host {host!r} has no address: {e}") from e
    return frozenset(_normal(str(entry[4][0])) for entry in found)


class Donor:
    """Serves `tensors` until `close`, or until `deadline_s` after `start`, in threads of its own.

    They must not change meanwhile. A process that is not at `peer_host`, or does not prove to hold `token` for `generation`, is
    turned away and logged once; the right peer is served all the same. `protection`: of what goes to another machine; `identity`:
    key and certificate (PEM) for `full`.

    Raises RefusedError when `peer_host` cannot be resolved or `full` has no identity, UnsupportedError for tensors without plain
    bytes.
    """

    def __init__(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        bind_host: str,
        generation: int,
        token: str,
        peer_host: str,
        deadline_s: float,
        log: Callable[[str], None],
        protection: str = INTEGRITY,
        identity: str = "",
    ) -> None:
        self._source = TensorSource(tensors)
        self._manifest = layout.encode(self._source.infos)
        self._bind_host = bind_host
        self._generation = generation
        self._token = token
        self._protection = protection
        self._identity = Identity(identity) if protection == FULL else None
        self._peers = _addresses(peer_host)
        self._deadline_s = deadline_s
        self._log = log
        self._logged: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._pending: dict[Channel, None] = {}
        self._open: set[Channel] = set()
        self._threads: set[threading.Thread] = set()
        self._closed = False
        self._done = threading.Event()
        self._given_up = False
        self._listener: socket.socket | None = None
        self._deadline = 0.0

    def start(self) -> int:
        """Listen, and return the port. Raises ChannelClosedError when `bind_host` is no address of this machine."""
        self._deadline = time.monotonic() + self._deadline_s
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(
                self._bind_host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            listener = socket.socket(family, kind, protocol)
            try:
                listener.bind(address)
                listener.listen(_BACKLOG)
            except OSError:
                listener.close()
                raise
        except OSError as e:
            raise ChannelClosedError(f"a tensor channel cannot be opened on {self._bind_host!r}: {e}") from e
        self._listener = listener
        self._spawn(self._accept, listener)
        return int(listener.getsockname()[1])

    def wait(self, timeout_s: float) -> bool:
        """Return whether the peer said, within `timeout_s` and before `give_up`, that it holds everything."""
        return self._done.wait(timeout_s) and not self._given_up

    def give_up(self) -> None:
        """Stop the wait of a thread that is in `wait`. For any thread."""
        if not self._done.is_set():
            self._given_up = True
            self._done.set()

    def close(self) -> None:
        """End all connections and threads. May be called twice."""
        with self._lock:
            self._closed = True
            if self._listener is not None:
                # It is woken, not closed: the thread in accept() would wait again for whatever has got the descriptor by then.
                with contextlib.suppress(OSError):
                    self._listener.shutdown(socket.SHUT_RDWR)
        while True:
            with self._lock:
                channels = set(self._open)
                threads = self._threads - {threading.current_thread()}
            if not threads:
                return
            for channel in channels:
                channel.wake()
            # Threads are joined one at a time: the one that accepts may have begun another one meanwhile.
            thread = threads.pop()
            thread.join()
            with self._lock:
                self._threads.discard(thread)

    def _spawn(self, work: Callable[..., None], *arguments: object) -> None:
        # Only `close` forgets it: one that still frees tensors when the interpreter ends would abort the process.
        thread = threading.Thread(target=work, args=arguments, name="torchrelay-donor", daemon=True)
        thread.start()
        with self._lock:
            self._threads.add(thread)

    def _accept(self, listener: socket.socket) -> None:
        while (left_s := self._deadline - time.monotonic()) > 0:
            try:
                listener.settimeout(left_s)
                sock, address = listener.accept()
            except TimeoutError:
                break
            except ConnectionError:
                continue
            except OSError:
                # `close` has woken it.
                break
            self._take(sock, _normal(str(address[0])))
        with self._lock:
            listener.close()

    def _take(self, sock: socket.socket, peer: str) -> None:
        if peer not in self._peers:
            self._log_once(
                peer, "not the address of the peer that was named"
            )  # before it is told: whoever saw it can say why
            sock.close()
            return
        try:
            channel = Channel(sock, self._deadline)
        except OSError:
            sock.close()
            return
        with self._lock:
            if self._closed:
                channel.close()
                return
            self._open.add(channel)
            self._pending[channel] = None
            # Silent connections must not keep the right one out: the oldest that has not introduced itself goes.
            crowded = next(iter(self._pending)) if len(self._open) > _MAX_CONNECTIONS else None
            if crowded is not None:
                # It is taken out at once, not when its thread has noticed: the next one to come would pick it again.
                del self._pending[crowded]
                self._open.discard(crowded)
        if crowded is not None:
            crowded.wake()
        self._spawn(self._serve, channel, peer)

    def _serve(self, channel: Channel, peer: str) -> None:
        lanes = Lanes()
        admitted = False
        try:
            soon = time.monotonic() + _HELLO_DEADLINE_S
            admit(channel, self._generation, self._token, soon, self._protection, self._identity)
            admitted = True
            with self._lock:
                self._pending.pop(channel, None)
            while self._answer(channel, lanes):
                pass
        except ChannelClosedError as e:
            if not admitted:
                self._log_once(peer, f"no introduction came: {e}")
        except TorchrelayError as e:
            self._log_once(peer, str(e))
        except RuntimeError as e:
            # torch raises this when a device fails: this rank cannot be the donor, and the peer sees the end.
            self._log(f"tensor channel: reading this rank's tensors failed: {e}")
        finally:
            with self._lock:
                self._pending.pop(channel, None)
                self._open.discard(channel)
            channel.close()

    def _answer(self, channel: Channel, lanes: Lanes) -> bool:
        """Answer one request. Return False after the last one."""
        kind, number = requests.next_request(channel)
        if kind == requests.DONE:
            self._done.set()
            return False
        if kind == requests.CHUNK:
            if number >= len(self._source.chunks):
                raise FrameError(f"chunk {number} was asked for, there are {len(self._source.chunks)}")
            chunk = self._source.chunks[number]
            requests.announce(channel, kind, number, chunk.size)
            write = channel.send_numbers if layout.is_numbers(chunk, self._source.infos) else channel.send
            channel.send(self._source.write_chunk(number, lanes, write))
            channel.sign()
            return True
        if kind == requests.MANIFEST:
            content = self._manifest
        elif kind == requests.FINGERPRINT:
            content = layout.fingerprint(self._manifest)
        elif kind == requests.SEAL:
            self._source.sum_rest()
            content = self._source.rows.seal()
        else:
            self._source.sum_rest()
            content = json.dumps(self._source.rows.digests()).encode()
        requests.announce(channel, kind, number, len(content))
        channel.send(content)
        channel.sign()
        return True

    def _log_once(self, peer: str, reason: str) -> None:
        with self._lock:
            known = (peer, reason) in self._logged
            self._logged.add((peer, reason))
        if not known:
            self._log(f"tensor channel: {peer} turned away: {reason}")
