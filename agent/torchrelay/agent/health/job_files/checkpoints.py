"""Is a checkpoint on disk whole? By what its format says of its own length; no tensor is read.

Leans on the zip files of torch.save, on safetensors' header, on the index files of Hugging Face, and on the `.metadata` that
torch.distributed.checkpoint writes last (a pickle, torch 2.4 to 2.13; nothing of it is executed). Other files are not judged.
"""

from __future__ import annotations

import io
import json
import logging
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

MOST_FILES = 4096
MOST_METADATA_BYTES = 256 << 20
_TORCH = (".pt", ".pth", ".bin", ".ckpt")
_ZIP = b"PK\x03\x04"


def what_is_broken(folder: Path) -> list[str]:
    """Of the newest checkpoint below `folder`: each file that is not whole, and why. Empty if all are, or none is there.

    Raises OSError where the folder cannot be read.
    """
    newest = max(_files(folder), key=lambda f: f.stat().st_mtime, default=None)
    if newest is None:
        return []
    return [f"{newest.parent}/{text}" for text in broken_in(newest.parent)]


def broken_in(folder: Path) -> list[str]:
    """Each file of the checkpoint that the folder is which is not whole, and why. Raises OSError."""
    beside = [f for f in sorted(folder.iterdir())[:MOST_FILES] if f.is_file()]
    found = [f"{f.name}: {why}" for f in beside if (why := why_broken(f))]
    if any(f.suffix == ".distcp" for f in beside):
        found += _distributed(folder)
    return found


def _files(folder: Path) -> Iterator[Path]:
    """Those that a checkpoint is made of."""
    yield from filter(is_checkpoint_file, folder.rglob("*"))


def is_checkpoint_file(path: Path) -> bool:
    return path.suffix in (*_TORCH, ".safetensors", ".distcp") and path.is_file()


def why_broken(path: Path) -> str:
    """Why the file is not whole, or empty. Raises OSError."""
    size = path.stat().st_size
    if path.suffix in (*_TORCH, ".safetensors") and size == 0:
        return "is empty"
    if path.suffix in _TORCH:
        return _torch_file(path)
    if path.suffix == ".safetensors":
        return _safetensors(path, size)
    return _index(path) if path.name.endswith(".index.json") else ""


def _torch_file(path: Path) -> str:
    with open(path, "rb") as f:
        if f.read(len(_ZIP)) != _ZIP:
            return ""  # the format before torch 1.6, or something else
    try:
        with zipfile.ZipFile(path):
            return ""
    except zipfile.BadZipFile:
        return "its end is missing"


def _safetensors(path: Path, size: int) -> str:
    with open(path, "rb") as f:
        length = int.from_bytes(f.read(8), "little")
        if 8 + length > size:
            return "its end is missing"
        try:
            tensors = json.loads(f.read(length))
            ends = [tensor["data_offsets"][1] for name, tensor in tensors.items() if name != "__metadata__"]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError):
            return "its header cannot be read"
    expected = 8 + length + max(ends, default=0)
    return "" if size == expected else f"has {size} bytes and not {expected}"


def _index(path: Path) -> str:
    try:
        names = set(json.loads(path.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "cannot be read"
    missing = sorted(name for name in names if not (path.parent / name).exists())
    return f"{missing[0]} is missing" + (f", and {len(missing) - 1} more" if missing[1:] else "") if missing else ""


def _distributed(folder: Path) -> list[str]:
    metadata = folder / ".metadata"
    if not metadata.exists():
        return [".metadata: is missing, which is written when all else is there"]
    if metadata.stat().st_size > MOST_METADATA_BYTES:
        return []
    try:
        needed = _needed_bytes(_PlainShapes(io.BytesIO(metadata.read_bytes())).load())
    except (EOFError, pickle.UnpicklingError) as e:
        return [f".metadata: cannot be read: {e}"]
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as e:
        log.debug("%s is of a form that is not known: %r", metadata, e)
        return []
    found = []
    for name, end in sorted(needed.items()):
        file = folder / name
        if not file.exists():
            found.append(f"{name}: is missing")
        elif file.stat().st_size < end:
            found.append(f"{name}: has {file.stat().st_size} bytes and not {end}")
    return found


def _needed_bytes(metadata: Any) -> dict[str, int]:
    """File -> how long it is at least."""
    needed: dict[str, int] = {}
    for stored in metadata.storage_data.values():
        end = int(stored.offset) + int(stored.length)
        needed[stored.relative_path] = max(needed.get(stored.relative_path, 0), end)
    return needed


class _Shape:
    """Stands for an object of whichever class: its attributes, and nothing that it could do."""

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        self.__dict__.update(attributes)

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, dict):
            self.__dict__.update(state)


class _PlainShapes(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return _Shape
