"""Tiny data for programs of the wild corpus that learn from texts and from what is said."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np


def packed_tokens(folder: Path) -> None:
    """Make chunks of token numbers below 128 in lit-gpt's packed form, of two sources and for validation."""
    draw = np.random.default_rng(51)
    (folder / "packed").mkdir()
    for prefix in ("train_slim", "train_star", "validation"):
        for number in range(16):
            tokens = draw.integers(0, 128, 330, dtype=np.uint16)
            head = b"LITPKDS" + struct.pack("<QBQ", 1, 8, len(tokens))
            (folder / "packed" / f"{prefix}_{number:010}.bin").write_bytes(head + tokens.tobytes())
