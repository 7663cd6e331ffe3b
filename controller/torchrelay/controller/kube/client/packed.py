"""Objects that are kept by the thousand and looked at seldom: as bytes they take a fortieth of what dicts do."""

from __future__ import annotations

import json
import zlib
from typing import Any


def pack(found: dict[str, Any]) -> bytes:
    """Without managed fields, which are large and of no use here."""
    meta = {k: v for k, v in found["metadata"].items() if k != "managedFields"}
    return zlib.compress(json.dumps({**found, "metadata": meta}, separators=(",", ":")).encode(), level=1)


def unpack(packed: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(zlib.decompress(packed))
    return found
