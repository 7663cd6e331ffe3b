"""The receiver: takes over a donor's tensors, through several connections at once."""

from __future__ import annotations

import contextlib
import gc
import json
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace

import torch

from torchrelay.protocol.errors import ChannelClosedError, FrameError, RefusedError, StateMismatchError
from torchrelay.protocol.messages import Transferred
from torchrelay.protocol.security.transfer_protection import INTEGRITY
from torchrelay.shim.transfer import layout, requests
from torchrelay.shim.transfer.channel import Channel, connect
from torchrelay.shim.transfer.handshake import introduce
from torchrelay.shim.transfer.lanes import Lanes
from torchrelay.shim.transfer.layout import TensorInfo
from torchrelay.shim.transfer.pace import EVERY_S, Moved, nobody
from torchrelay.shim.transfer.rows import CHECK_BYTES, SEAL_BYTES, Rows
from torchrelay.shim.transfer.sink import Sink

Address = tuple[str, int]
"""Host and port."""
Place = Callable[[Sequence[TensorInfo]], Mapping[str, torch.Tensor]]

_PATIENCE_S = 5.0
"""How long one of several donors may say nothing. Whoever stands frozen holds nobody up: the others have the same."""
_AHEAD = 2
"""Chunks asked for at a time by each connection: the donor has the next one ready while this one is checked."""


@dataclass(frozen=True)
class TransferStats:
    """What was transferred. `donors`: how many had a part in it; `differed`: why it was taken from one alone, if it was."""

    size_bytes: int
    tensors: int
    elapsed_s: float
    rows: Rows = field(repr=False)
    chunks_asked_again: int = 0
    donors: int = 1
    differed: str = ""

    def report(self, generation: int) -> Transferred:
        return Transferred(generation, self.size_bytes, self.tensors, self.elapsed_s, self.differed)

    def digests(self) -> dict[str, str]:
        """Return the content digest of each tensor as it arrived, which is the source's."""
        return self.rows.digests()


@dataclass
class Arrived:
    """What has arrived in a transfer that broke off: the next one of the same tensors into the same memory goes on from it."""

    sink: Sink | None = None
    carried_over: bool = False
    """Whether the latest attempt has gone on from an earlier one."""

    def take_up(self, infos: Sequence[TensorInfo], destinations: Mapping[str, torch.Tensor]) -> Sink:
        if self.sink is None or not self.sink.is_for(infos, destinations):
            self.sink = Sink(infos, destinations)
        self.carried_over = bool(self.sink.accepted)
        return self.sink


@dataclass(frozen=True)
class _Donors:
    """Where to receive from.

    `addresses`: the first donor is asked for the manifest, and what the others give has to be the same.
    """

    addresses: Sequence[Address]
    generation: int
    token: str
    deadline: float
    protection: str

    def channel(self, donor: int, number: int) -> Channel:
        """Connect to a donor. Raises ChannelClosedError, RefusedError."""
        host, port = self.addresses[donor]
        one_of_several = len(self.addresses) > 1
        soon = time.monotonic() + _PATIENCE_S
        channel = connect(host, port, min(soon, self.deadline) if one_of_several else self.deadline)
        try:
            introduce(channel, self.generation, self.token, number, self.protection)
        except (RefusedError, ChannelClosedError):
            channel.close()
            raise
        channel.patience_s = _PATIENCE_S if one_of_several else None
        channel.deadline = self.deadline
        return channel


class _Work:
    """Chunks that are still to come, shared by all connections."""

    def __init__(self, chunks: Sequence[int], deadline: float) -> None:
        self._waiting = deque(chunks)
        self._left = len(chunks)
        self._attempts: Counter[int] = Counter()
        self._changed = threading.Condition()
        self._deadline = deadline
        self._stopped = False
        self.asked_again = 0

    def take(self) -> int | None:
        with self._changed:
            return None if self._stopped or not self._waiting else self._waiting.popleft()

    def give_back(self, chunks: Sequence[int]) -> None:
        with self._changed:
            self._waiting.extendleft(reversed(chunks))
            self._changed.notify_all()

    def finish(self) -> None:
        with self._changed:
            self._left -= 1
            if not self._left:
                self._changed.notify_all()

    def failed(self, chunk: int) -> int:
        """Return how often this chunk arrived damaged, this time included."""
        with self._changed:
            self._attempts[chunk] += 1
            self.asked_again += 1
            return self._attempts[chunk]

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def more(self) -> bool:
        """Wait until there is a chunk to take (True), or none will come any more."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._stopped or self._waiting or not self._left, max(0.0, self._deadline - time.monotonic())
            )
            return bool(self._waiting) and not self._stopped

    @property
    def left(self) -> int:
        return self._left


def receive(
    host: str,
    port: int,
    *,
    generation: int,
    token: str,
    place: Place,
    more: Sequence[Address] = (),
    connections: int = 4,
    deadline_s: float,
    arrived: Arrived | None = None,
    protection: str = INTEGRITY,
    moved: Moved = nobody,
) -> TransferStats:
    """Fill the tensors that `place` names with the donor's content, in place, and return when all are checked.

    `place` gets the manifest and returns a destination of the same dtype and shape for every path. `more`: other donors of the same
    tensors, which give at the same time, and stand in where one dies. Whatever came from which donor, all together is compared with
    what one of them holds; if it differs, everything comes from the first. `arrived`: of an earlier attempt that broke off; kept up
    to date. `protection`: of what comes from another machine. `moved`: told now and then how far it is.

    Raises RefusedError (no donor knows us), ChannelClosedError (all died, or `deadline_s` passed), StateMismatchError (a
    destination does not fit, or content arrived damaged twice), FrameError (no donor speaks there). Destinations are undefined
    after an error.
    """
    started = time.monotonic()
    arrived = arrived or Arrived()
    donors = _Donors([(host, port), *more], generation, token, started + deadline_s, protection)
    with _no_collection():
        try:
            return _receive(donors, place, connections, arrived, started, moved)
        except StateMismatchError as error:
            if not more and not arrived.carried_over:
                raise
            arrived.sink = None
            alone = replace(donors, addresses=donors.addresses[:1])
            return replace(_receive(alone, place, connections, arrived, started, moved), differed=str(error))


def _receive(
    donors: _Donors, place: Place, connections: int, arrived: Arrived, started: float, moved: Moved
) -> TransferStats:
    donors, first = _first_to_answer(donors)
    channels = [first]
    try:
        requests.ask(first, requests.MANIFEST)
        manifest = requests.content(first, requests.MANIFEST)
        infos = layout.decode(manifest)
        sink = arrived.take_up(infos, place(infos))
        work = _Work([n for n in range(len(sink.chunks)) if n not in sink.accepted], donors.deadline)
        wanted = max(1, min(max(connections, len(donors.addresses)), len(sink.chunks)))
        chunks_bytes = sum(chunk.size for chunk in sink.chunks)
        alive = _pull_all(
            sink,
            work,
            channels,
            wanted,
            lambda n: _further(donors, n, manifest),
            lambda: moved(sink.accepted_bytes, chunks_bytes),
        )
        _compare(sink, alive)
    finally:
        for channel in channels:
            channel.close()
    gave = min(len(donors.addresses), len(alive))
    return TransferStats(sink.size_bytes, len(infos), time.monotonic() - started, sink.rows, work.asked_again, gave)


def _first_to_answer(donors: _Donors) -> tuple[_Donors, Channel]:
    """Return the donors from the first that answers on, and a channel to it. Raises the first donor's error where none answers."""
    errors: list[RefusedError | ChannelClosedError] = []
    for place in range(len(donors.addresses)):
        try:
            channel = donors.channel(place, 0)
        except (RefusedError, ChannelClosedError) as e:
            errors.append(e)
        else:
            return replace(donors, addresses=donors.addresses[place:]), channel
    raise errors[0]


def _further(donors: _Donors, number: int, manifest: bytes) -> tuple[int, Channel]:
    """Return connection `number`, with the place of its donor. Raises ChannelClosedError where that donor holds something else."""
    place = number % len(donors.addresses)
    channel = donors.channel(place, number)
    if place:
        try:
            requests.ask(channel, requests.FINGERPRINT)
            found = requests.content(channel, requests.FINGERPRINT, layout.FINGERPRINT_BYTES)
            if found != layout.fingerprint(manifest):
                raise ChannelClosedError("this donor holds other tensors than the first one")
        except (ChannelClosedError, FrameError):
            channel.close()
            raise
    return place, channel


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep Python from collecting garbage: thousands of new objects make it look at all that it has, for 80 ms and more."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _pull_all(
    sink: Sink,
    work: _Work,
    channels: list[Channel],
    wanted: int,
    open_channel: Callable[[int], tuple[int, Channel]],
    every_moment: Callable[[], None],
) -> list[Channel]:
    """Get every chunk. Return the channels that still work, the first donor's first; `channels` gets all that were opened.

    `every_moment` is called each EVERY_S, by the thread that waits for the others.
    """
    alive: list[tuple[int, int, Channel]] = []
    lost: list[ChannelClosedError | RefusedError | FrameError] = []

    def run(number: int) -> None:
        try:
            donor, channel = (0, channels[0]) if number == 0 else open_channel(number)
            if number:
                channels.append(channel)
            _pull(sink, work, channel)
            alive.append((donor, number, channel))
        except (ChannelClosedError, RefusedError, FrameError) as e:
            # The other connections carry on; the chunks of this one were given back.
            lost.append(e)

    with ThreadPoolExecutor(wanted, thread_name_prefix="torchrelay-receiver") as pool:
        running = [pool.submit(run, number) for number in range(wanted)]
        try:
            for one in running:
                while wait((one,), EVERY_S).not_done:
                    every_moment()
                one.result()
        finally:
            if work.left:
                work.stop()
                for channel in list(channels):
                    channel.wake()
    if work.left or not alive:
        raise ChannelClosedError(f"all connections to the donor broke; the first: {lost[0] if lost else 'deadline'}")
    return [channel for _, _, channel in sorted(alive, key=lambda one: one[:2])]


def _pull(sink: Sink, work: _Work, channel: Channel) -> None:
    lanes = Lanes()
    asked: deque[int] = deque()
    try:
        while True:
            while len(asked) < _AHEAD and (chunk := work.take()) is not None:
                asked.append(chunk)
                requests.ask(channel, requests.CHUNK, chunk)
            if not asked:
                if work.more():
                    continue
                return
            _read(sink, work, channel, lanes, asked)
    finally:
        work.give_back(asked)


def _read(sink: Sink, work: _Work, channel: Channel, lanes: Lanes, asked: deque[int]) -> None:
    chunk = asked[0]
    requests.expect(channel, requests.CHUNK, chunk, sink.chunks[chunk].size)
    fill = channel.fill_numbers if layout.is_numbers(sink.chunks[chunk], sink.infos) else channel.fill
    check = sink.read_chunk(chunk, lanes, fill)
    theirs = channel.receive(CHECK_BYTES)
    channel.check()
    if theirs == check:
        sink.accept(chunk)
        asked.popleft()
        work.finish()
        return
    if work.failed(chunk) > 1:
        content = sink.chunks[chunk]
        index = content.small[0] if content.small else content.spans[0].tensor
        work.stop()
        raise StateMismatchError(f"{sink.infos[index].path}: arrived damaged twice (chunk {chunk})")
    asked.popleft()
    asked.append(chunk)
    requests.ask(channel, requests.CHUNK, chunk)


def _compare(sink: Sink, alive: Sequence[Channel]) -> None:
    """Compare what all chunks together make here and at the source, and say DONE.

    Raises StateMismatchError where they differ, ChannelClosedError.
    """
    for channel in alive:
        channel.patience_s = None  # it may have to sum up what others have given
        try:
            requests.ask(channel, requests.SEAL)
            if requests.content(channel, requests.SEAL, SEAL_BYTES) != sink.rows.seal():
                requests.ask(channel, requests.DIGESTS)
                content = requests.content(channel, requests.DIGESTS)
                raise StateMismatchError(f"content differs from the source's: {_differing(sink, content)}")
            requests.ask(channel, requests.DONE)
        except ChannelClosedError:
            continue
        return
    raise ChannelClosedError("the donor went away before it could say what all of it makes")


def _differing(sink: Sink, content: bytes) -> str:
    try:
        theirs = dict(json.loads(content))
    except (ValueError, TypeError) as e:
        raise FrameError(f"the donor's digests cannot be read: {e}") from e
    paths = [path for path, digest in sink.rows.digests().items() if theirs.get(path) != digest]
    return ", ".join(paths[:3]) + (f" and {len(paths) - 3} more" if len(paths) > 3 else "")
