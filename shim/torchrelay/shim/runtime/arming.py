"""The script's first process group, and with it the agreement of all ranks that they are protected."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torchrelay.protocol.errors import TorchrelayError, UnsupportedError
from torchrelay.protocol.messages import Armed
from torchrelay.shim.agent_link.config import ShimConfig
from torchrelay.shim.agent_link.link import AgentLink
from torchrelay.shim.runtime.agent_orders import AgentOrders
from torchrelay.shim.runtime.engine_maker import EngineMaker
from torchrelay.shim.script.guard import reason_of

if TYPE_CHECKING:
    from torchrelay.shim.step.engine import Engine

_PROTECT_TIMEOUT_S = 120.0
"""How long a rank that is ready waits for the others; after that the script goes on unprotected."""


class Arming:
    """`begin(engine)`: what is done where all are protected. `disable(reason)`: where this rank is not."""

    def __init__(
        self,
        config: ShimConfig,
        link: AgentLink,
        orders: AgentOrders,
        maker: EngineMaker,
        begin: Callable[[Engine], None],
        disable: Callable[[str], None],
    ) -> None:
        self._config = config
        self._link = link
        self._orders = orders
        self._maker = maker
        self._begin = begin
        self._disable = disable

    def make_first_group(self, original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As `torch.distributed.init_process_group`, which is `original`; raises what that does."""
        from torchrelay.shim.backends import registry
        from torchrelay.shim.comm.generations.communicators import Communicators

        registry.prepare()
        early = Communicators(-1, -1, self._config.address, self._config.log)
        with early.breaking.connecting(early.now):
            result = original(*args, **kwargs)
        try:
            self._begin(self._protected(early.now.inodes))
        except (TorchrelayError, RuntimeError) as e:
            self._disable(str(e))  # a reason that speaks for itself
        except Exception as e:  # noqa: BLE001 - whatever is wrong with us or this machine, training goes on
            self._disable(f"it could not be got ready: {reason_of(e)}")
        return result

    def _protected(self, inodes: set[str]) -> Engine:
        """`inodes`: of sockets that the group has opened. Raises UnsupportedError where the ranks are not protected."""
        import torch
        import torch.distributed as dist
        from torch.distributed import distributed_c10d as c10d

        from torchrelay.shim.adapters.process_groups import process_group
        from torchrelay.shim.backends import registry
        from torchrelay.shim.comm.generations.generation_store import decline_gate

        rank = dist.get_rank()
        world_size = dist.get_world_size()
        registry.check_groups([c10d._get_default_group()])
        backend = process_group.backend_name(c10d._get_default_group())
        journal = self._maker.journal()  # before the others count on this rank
        self._link.send(Armed(rank, world_size, backend, torch.__version__))
        answered = self._orders.answered.wait(_PROTECT_TIMEOUT_S)
        protect = self._orders.protect
        if not answered or protect is None or not protect.on:
            journal.close()
            raise UnsupportedError(protect.reason if protect is not None else "the controller did not answer")
        store = c10d._get_default_store()
        try:
            engine = self._maker.engine(rank, world_size, journal)
        except Exception:
            decline_gate(store, rank)
            raise
        engine.comms.now.inodes |= inodes
        engine.comms.connect_gate(store, protect.gate_secret)
        return engine
