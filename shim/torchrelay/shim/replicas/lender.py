"""Give a copy that lies on this machine to the rank that it is of, which enters on a machine without one.

Both processes are joiners of a rollback. The copy is in shared memory, so the process that wrote it need not live.
"""

from __future__ import annotations

from pathlib import Path

from torchrelay.protocol.errors import JournalError, TorchrelayError
from torchrelay.protocol.logs.log_lines import LogLines
from torchrelay.protocol.machine.addresses import bind_address
from torchrelay.protocol.messages import OrderFailed, Serve, Serving
from torchrelay.shim.agent_link.link import AgentLink
from torchrelay.shim.replicas import kept_tensors
from torchrelay.shim.script.guard import reason_of
from torchrelay.shim.transfer import Donor

DEADLINE_S = 300.0


class CopyServer:
    """Give kept copies to other processes. `address`: under which they reach this process."""

    def __init__(self, link: AgentLink, address: str, protection: str, log: LogLines) -> None:
        self._link = link
        self._address = address
        self._protection = protection
        self._log = log
        self._donors: list[Donor] = []

    def serve(self, order: Serve) -> None:
        """Open a channel for a kept copy. Answer with Serving, or say why that cannot be done."""
        try:
            port = self._open(order)
        except (OSError, RuntimeError, TorchrelayError) as e:
            self._link.send(OrderFailed(order.generation, "Serve", reason_of(e)))
        else:
            self._link.send(Serving(order.generation, self._address, port))

    def _open(self, order: Serve) -> int:
        kept, digests, boundary = kept_tensors.opened(Path(order.kept))
        if boundary != order.boundary:
            raise JournalError(f"{order.kept} holds the copy of boundary {boundary}, not {order.boundary}")
        kept_tensors.check(Path(order.kept), kept, digests)
        donor = Donor(
            kept.views,
            bind_host=bind_address(self._address),
            generation=order.generation,
            token=order.token,
            peer_host=order.peer_host,
            deadline_s=DEADLINE_S,
            log=self._log.say,
            protection=self._protection,
            identity=self._link.identity,
        )
        self._donors.append(donor)
        return donor.start()

    def close(self) -> None:
        """Close all channels: nothing is given any more."""
        for donor in self._donors:
            donor.close()
        self._donors.clear()
