"""Make a gloo communicator that connects to no peer until it is used: its device is told to be lazy.

Seen on torch 2.13.0 and 2.14.1.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist


def unconnected_gloo(place: int, size: int) -> Any:
    """Make a gloo communicator that connects to no peer.

    Where torch knows no lazy devices, the communicator has a single member: all that it is asked there is its name.
    """
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timedelta(seconds=1)
    try:
        options._devices = [gloo.create_device(hostname="127.0.0.1", lazy_init=True)]
    except TypeError:
        return gloo(dist.HashStore(), 0, 1, timedelta(seconds=1))
    return gloo(dist.HashStore(), place, size, options)
