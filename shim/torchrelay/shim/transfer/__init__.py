"""State goes from rank to rank, straight between tensor memories: a `Donor` serves, `receive` takes."""

from torchrelay.shim.transfer.donor import Donor
from torchrelay.shim.transfer.layout import TensorInfo
from torchrelay.shim.transfer.receiver import Place, TransferStats, receive

__all__ = ["Donor", "Place", "TensorInfo", "TransferStats", "receive"]
