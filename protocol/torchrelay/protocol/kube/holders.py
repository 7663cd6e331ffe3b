"""Which worker has each rank of a large job, as text in its TrainingJob: about 10 bytes a rank."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Mapping

from torchrelay.protocol.errors import FrameError

MOST_CHARS = 1_000_000
"""An object of the API may have 1.5 MiB."""


def pack_holders(holders: Mapping[int, str], node_of: Callable[[str], str]) -> str:
    """Return which worker has which rank, on which node, for `unpack_holders`.

    Empty if the text would be larger than MOST_CHARS: then only agents tell it to another controller.
    """
    known = [(rank, worker, node_of(worker.partition(":")[0])) for rank, worker in sorted(holders.items())]
    packed = base64.b64encode(zlib.compress(json.dumps(known, separators=(",", ":")).encode())).decode()
    return packed if len(packed) <= MOST_CHARS else ""


def unpack_holders(packed: str) -> list[tuple[int, str, str]]:
    """Return rank, worker and node of each holder. Raises FrameError if the text is not from `pack_holders`."""
    try:
        known = json.loads(zlib.decompress(base64.b64decode(packed, validate=True)))
        return [(int(rank), str(worker), str(node)) for rank, worker, node in known]
    except (ValueError, TypeError, RecursionError, zlib.error) as e:
        raise FrameError(f"not the holders of ranks: {e}") from e
