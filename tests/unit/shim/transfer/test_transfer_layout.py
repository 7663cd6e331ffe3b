from __future__ import annotations

import json
import random

import pytest
import torch

from torchrelay.protocol.errors import FrameError
from torchrelay.shim.tensors.digest import ROW_BYTES
from torchrelay.shim.tensors.tensor_bytes import padded
from torchrelay.shim.transfer.layout import CHUNK_BYTES, SMALL_BYTES, TensorInfo, decode, encode, is_numbers, plan


def info(path: str, size: int) -> TensorInfo:
    return TensorInfo(path, torch.uint8, (size,), size)


def test_every_byte_is_in_exactly_one_chunk() -> None:
    chance = random.Random(5)
    for _ in range(50):
        edges = [0, 1, SMALL_BYTES, SMALL_BYTES + 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 7]
        sizes = [chance.choice([*edges, chance.randrange(1 << chance.randrange(1, 25))]) for _ in range(30)]
        infos = [info(f"t{i}", size) for i, size in enumerate(sizes)]
        next_byte = [0] * len(infos)
        for chunk in plan(infos):
            assert bool(chunk.spans) != bool(chunk.small)
            for span in chunk.spans:
                assert span.start == next_byte[span.tensor]
                assert span.start % ROW_BYTES == 0
                next_byte[span.tensor] += span.size
            for tensor in chunk.small:
                next_byte[tensor] += sizes[tensor]
            assert chunk.size <= CHUNK_BYTES
            assert chunk.size == sum(s.size for s in chunk.spans) + sum(padded(sizes[i]) for i in chunk.small)
        assert next_byte == sizes


def test_thousands_of_tiny_tensors_need_few_requests() -> None:
    assert len(plan([info(f"t{i}", 40) for i in range(5000)])) == 5


def test_a_manifest_survives_the_way() -> None:
    infos = [
        TensorInfo("a.weight", torch.bfloat16, (3, 4), 24),
        TensorInfo("b", torch.complex128, (), 16),
        TensorInfo("naïve/ключ", torch.bool, (0, 5), 0),
    ]
    assert decode(encode(infos)) == infos


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"[" * 100_000,
        b'{"tensors": 3}',
        b'{"tensors": [["a", "float32"]]}',
        b'{"tensors": [["a", "Tensor", [1]]]}',
        b'{"tensors": [["a", "no_such_dtype", [1]]]}',
        b'{"tensors": [["a", "float32", [-1]]]}',
        b'{"tensors": [["a", "float32", [1.5]]]}',
        b'{"tensors": [["a", "float32", [true]]]}',
        b'{"tensors": [["a", "float32", "12"]]}',
        b'{"tensors": [[3, "float32", [1]]]}',
        json.dumps({"tensors": [["a", "float32", [1] * 65]]}).encode(),
        b'{"tensors": [["a", "float32", [1]], ["a", "float32", [1]]]}',
    ],
)
def test_anything_else_is_no_manifest(content: bytes) -> None:
    with pytest.raises(FrameError, match="manifest"):
        decode(content)


@pytest.mark.parametrize("size", [40, CHUNK_BYTES // 2], ids=["packed", "large"])
def test_a_chunk_with_anything_but_floating_point_numbers_is_none_of_numbers(size: int) -> None:
    numbers = [TensorInfo(f"n{i}", d, (size,), size) for i, d in enumerate((torch.float16, torch.complex64))]
    (chunk,) = plan(numbers)
    assert is_numbers(chunk, numbers)
    for dtype in (torch.uint8, torch.int8, torch.bool, torch.int32, torch.int64):
        others = [numbers[0], TensorInfo("other", dtype, (size,), size)]
        (chunk,) = plan(others)
        assert not is_numbers(chunk, others)
