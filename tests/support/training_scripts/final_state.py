"""What a rank leaves behind at the end: its losses as they are in memory, and a digest of everything that training changed."""

import hashlib
import json
import os
import random
import struct
from pathlib import Path

import numpy
import torch


def _feed(digest, value):
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        digest.update(f"tensor {plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.view(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    elif isinstance(value, numpy.ndarray):
        digest.update(f"array {value.dtype} {value.shape}".encode())
        digest.update(value.tobytes())
    elif isinstance(value, float):
        digest.update(b"float" + struct.pack("<d", value))
    elif isinstance(value, dict):
        digest.update(f"{type(value).__name__} {len(value)}".encode())
        for key, item in value.items():
            _feed(digest, key)
            _feed(digest, item)
    elif isinstance(value, (list, tuple)) or type(value).__name__ == "deque":
        digest.update(f"{type(value).__name__} {len(value)}".encode())
        for item in value:
            _feed(digest, item)
    elif value is None or isinstance(value, (bool, int, str, bytes)):
        digest.update(f"{type(value).__name__} {value!r}".encode())
    else:
        raise TypeError(f"no digest for a {type(value).__name__}")


def digest_of(value):
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()


def write(folder, losses, model, optimizer, **more):
    """`more`: whatever else the script keeps, by name."""
    rank = int(os.environ["RANK"])
    parts = {
        "parameters": {name: p.detach() for name, p in model.named_parameters()},
        "buffers": dict(model.named_buffers()),
        "training": [m.training for m in model.modules()],
        "optimizer": optimizer.state_dict(),
        "rng_torch": torch.get_rng_state(),
        "rng_python": random.getstate(),
        "rng_numpy": list(numpy.random.get_state()),
        **more,
    }
    record = {
        "rank": rank,
        "losses": [float(loss).hex() for loss in losses],
        "state": {name: digest_of(part) for name, part in parts.items()},
    }
    path = Path(folder, f"rank-{rank}.json")
    path.with_suffix(".part").write_text(json.dumps(record))
    path.with_suffix(".part").replace(path)  # whoever waits for it reads all of it
