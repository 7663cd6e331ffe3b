"""Give a copy of a rank's state to its buddy, a rank on another node, over the tensor channel, and take copies, beside training."""

from __future__ import annotations

import math
import queue
import secrets
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from torchrelay.protocol.errors import TorchrelayError
from torchrelay.protocol.journals.kept import KeptParts, Slots, buddy_folder, write_parts
from torchrelay.protocol.logs.log_lines import LogLines
from torchrelay.protocol.machine.addresses import bind_address
from torchrelay.protocol.messages import CopyReady, CopyTaken, TakeCopy
from torchrelay.shim.agent_link.link import AgentLink
from torchrelay.shim.replicas.kept_tensors import KeptTensors
from torchrelay.shim.transfer import Donor, TensorInfo, receive

PATIENCE_S = 30.0
"""A buddy that has not fetched a copy by then is given up for this one: training waits for it at a gate."""
DEADLINE_S = 120.0
_CONNECTIONS = 2
_NOT_FETCHED = "its buddy has not fetched it"
_END = TakeCopy(-1, -1, "", 0, "")
_PARTS = ("kept/journal", "kept/set-up", "kept/layout")


class Giver:
    """Open a channel for one copy at a time. Thread safe.

    The giver waits for the buddy, which may be the rank that is lost: so nothing is given once a migration begins.
    """

    def __init__(self, link: AgentLink, address: str, protection: str, log: LogLines) -> None:
        self._link = link
        self._address = address
        self._protection = protection
        self._log = log
        self._lock = threading.Lock()
        self._donor: Donor | None = None
        self._paused: float | None = None
        """The newest generation that is not entered yet; None: copies are given."""
        self.peer_host = ""
        """The buddy's host; empty where there is no buddy."""

    def give(self, kept: KeptTensors, parts: KeptParts) -> str:
        """Give the copy to the buddy. Return empty when the buddy has it, or else why it has not."""
        host = self.peer_host
        if not host:
            return ""
        tensors = {**kept.views, **_as_tensors(parts)}
        token = secrets.token_hex(16)
        donor = Donor(
            tensors,
            bind_host=bind_address(self._address),
            generation=parts.boundary,
            token=token,
            peer_host=host,
            deadline_s=DEADLINE_S,
            log=self._log.say,
            protection=self._protection,
            identity=self._link.identity,
        )
        with self._lock:
            if self._paused is not None:
                return _NOT_FETCHED
            self._donor = donor
        try:
            self._link.send(CopyReady(parts.boundary, self._address, donor.start(), token))
            return "" if donor.wait(PATIENCE_S) else _NOT_FETCHED
        finally:
            with self._lock:
                self._donor = None
            donor.close()

    @property
    def waits(self) -> bool:
        """Return whether it waits for the buddy. It does so for PATIENCE_S at most."""
        return self._donor is not None

    def close(self) -> None:
        """Give nothing any more: at the script's end no rank fetches copies."""
        self.pause(math.inf)

    def pause(self, generation: float) -> None:
        """Give nothing until this generation, or a newer one, is entered or abandoned."""
        with self._lock:
            self._paused = max(generation, self._paused or 0)
            if self._donor is not None:
                self._donor.give_up()

    def resume(self, generation: int) -> None:
        with self._lock:
            if self._paused is not None and generation >= self._paused:
                self._paused = None


class Taker:
    """Fetch copies of other ranks, one after the other, on a thread of its own that begins with the first one."""

    def __init__(self, link: AgentLink, folder: Path, protection: str) -> None:
        self._link = link
        self._folder = folder
        self._protection = protection
        self._slots: dict[int, Slots] = {}
        self._tensors: dict[Path, KeptTensors] = {}
        self._orders: queue.SimpleQueue[TakeCopy | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def take(self, order: TakeCopy) -> None:
        self._put(order)

    def _put(self, order: TakeCopy | None) -> None:
        self._orders.put(order)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="torchrelay-take", daemon=True)
            self._thread.start()

    def drop(self) -> None:
        """Give the memory of the fetched copies back to the system: they are of no use any more."""
        self._put(None)

    def close(self) -> None:
        """Return when nothing is fetched any more."""
        if self._thread is not None:
            self._orders.put(_END)
            self._thread.join()

    def _work(self) -> None:
        while (order := self._orders.get()) != _END:
            if order is None:
                for slots in self._slots.values():
                    slots.drop()
                self._tensors.clear()
                continue
            try:
                size = self._fetch(order)
            except (OSError, TorchrelayError, RuntimeError) as e:
                self._link.send(CopyTaken(order.rank, order.boundary, 0, f"{type(e).__name__}: {e}"[:500]))
            else:
                self._link.send(CopyTaken(order.rank, order.boundary, size))

    def _fetch(self, order: TakeCopy) -> int:
        if order.rank not in self._slots:
            self._slots[order.rank] = Slots(buddy_folder(self._folder, order.rank))
        slots = self._slots[order.rank]
        slot = slots.open(order.boundary)
        kept = self._tensors.setdefault(slot, KeptTensors(slot))
        small: dict[str, torch.Tensor] = {}

        def place(infos: Sequence[TensorInfo]) -> Mapping[str, torch.Tensor]:
            small.update({i.path: torch.empty(i.shape, dtype=i.dtype) for i in infos if i.path in _PARTS})
            return {**kept.place([i for i in infos if i.path not in _PARTS]), **small}

        receive(
            order.host,
            order.port,
            generation=order.boundary,
            token=order.token,
            place=place,
            connections=_CONNECTIONS,
            deadline_s=DEADLINE_S,
            protection=self._protection,
        )
        journal, set_up, layout = (bytes(small[path].tolist()) for path in _PARTS)
        write_parts(slot, KeptParts(order.boundary, journal, set_up, layout.decode()))
        kept.seal(order.boundary)
        slots.filled(slot, order.boundary)
        return kept.size_bytes


def _as_tensors(parts: KeptParts) -> dict[str, torch.Tensor]:
    found = {}
    for path, data in zip(_PARTS, (parts.journal, parts.set_up, parts.ddp_layout.encode()), strict=True):
        found[path] = (
            torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
        )
    return found
