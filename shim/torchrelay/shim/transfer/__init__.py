"""State goes from rank to rank, straight between tensor memories: a `Donor` serves, `receive` takes."""

from torchrelay.shim.transfer.donor import Donor
from torchrelay.shim.transfer.layout import TensorInfo
from torchrelay.shim.transfer.receiver import Address, Arrived, Place, TransferStats, receive

__all__ = ["Address", "Arrived", "Donor", "Place", "TensorInfo", "TransferStats", "receive"]
