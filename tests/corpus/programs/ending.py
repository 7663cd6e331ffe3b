"""What a rank leaves behind: its losses with all their bits, and a digest of everything that training changed."""

import collections
import hashlib
import json
import os
import random
import struct
from pathlib import Path

import numpy
import torch


def _feed(digest, value):  # noqa: C901 - a program of the corpus, written as users write
    if hasattr(value, "to_local"):
        value = value.to_local()
    if isinstance(value, torch.Tensor):
        plain = value.detach().cpu().contiguous()
        digest.update(f"tensor {plain.dtype} {tuple(plain.shape)}".encode())
        digest.update(plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    elif isinstance(value, numpy.ndarray):
        digest.update(f"array {value.dtype} {value.shape}".encode() + value.tobytes())
    elif isinstance(value, float):
        digest.update(b"float" + struct.pack("<d", value))
    elif isinstance(value, dict):
        digest.update(f"dict {len(value)}".encode())
        for key, item in value.items():
            _feed(digest, key)
            _feed(digest, item)
    elif isinstance(value, list | tuple | collections.deque):
        digest.update(f"{type(value).__name__} {len(value)}".encode())
        for item in value:
            _feed(digest, item)
    elif value is None or isinstance(value, bool | int | str | bytes):
        digest.update(f"{type(value).__name__} {value!r}".encode())
    elif isinstance(value, torch.Generator):
        _feed(digest, value.get_state())
    elif isinstance(value, random.Random):
        _feed(digest, value.getstate())
    elif isinstance(value, numpy.random.Generator):
        _feed(digest, value.bit_generator.state)
    elif isinstance(value, torch.nn.Module):
        _feed(
            digest, [dict(value.named_parameters()), dict(value.named_buffers()), [m.training for m in value.modules()]]
        )
    elif hasattr(value, "state_dict"):
        _feed(digest, value.state_dict())
    else:
        raise TypeError(f"no digest for a {type(value).__name__}")


def digest_of(value):
    digest = hashlib.sha256()
    _feed(digest, value)
    return digest.hexdigest()


def write(losses, **parts):
    """`parts`: models, optimizers, schedulers, generators, counters, by name. Once, at the end."""
    rank = int(os.environ["RANK"])
    parts["rng"] = [torch.get_rng_state(), random.getstate(), list(numpy.random.get_state())]
    if torch.cuda.is_initialized():
        parts["rng"].append(torch.cuda.get_rng_state())
    record = {
        "rank": rank,
        "losses": [float(loss).hex() for loss in losses],
        "state": {name: digest_of(part) for name, part in parts.items()},
    }
    Path(os.environ["CORPUS_OUT"], f"rank-{rank}.json").write_text(json.dumps(record))
