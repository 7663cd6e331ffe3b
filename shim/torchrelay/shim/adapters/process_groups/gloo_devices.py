"""Make a gloo communicator that connects to nobody until it is used: its device is told to be lazy.

Seen on torch 2.13.0 and 2.14.1.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist


def unconnected_gloo(place: int, size: int) -> Any:
    """Make a gloo communicator that connects to nobody.

    Where torch knows no lazy devices, it has a single member: nobody asks it there for more than its name.
    """
    gloo: Any = dist.ProcessGroupGloo
    options = gloo._Options()
    options._timeout = timedelta(seconds=1)
    try:
        options._devices = [gloo.create_device(hostname="127.0.0.1", lazy_init=True)]
    except TypeError:
        return gloo(dist.HashStore(), 0, 1, timedelta(seconds=1))
    return gloo(dist.HashStore(), place, size, options)
