"""Tensors go from rank to rank, straight between their memories: a `Donor` serves, `receive` takes. Knows bytes, not steps.

Only `capture` and what lies above it may import it.
"""

from torchrelay.shim.transfer.donor import Donor
from torchrelay.shim.transfer.layout import TensorInfo
from torchrelay.shim.transfer.receiver import Address, Arrived, Place, TransferStats, receive

__all__ = ["Address", "Arrived", "Donor", "Place", "TensorInfo", "TransferStats", "receive"]
