from __future__ import annotations

import random
import re

import pytest
import torch

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.tensors import digest as module
from torchrelay.shim.tensors.digest import ROW_BYTES, digest, digests, new_rows, row_sums
from torchrelay.shim.tensors.tensor_bytes import flat_bytes, memory

SIZES = (1, 7, 8, 9, 1023, ROW_BYTES - 1, ROW_BYTES, ROW_BYTES + 1, 3 * ROW_BYTES + 5, 40 * ROW_BYTES + 77)
MASK = (1 << 64) - 1


def random_bytes(chance: random.Random, size: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(chance.randbytes(size)), dtype=torch.uint8)


def by_the_book(data: bytes) -> list[list[int]]:
    """The formula of the module's docstring in plain Python, modulo 2^64."""
    weights, other = (w.tolist() for w in module._weights(torch.device("cpu")))
    data += bytes(-len(data) % ROW_BYTES)
    sums = []
    for start in range(0, len(data), ROW_BYTES):
        words = [int.from_bytes(data[at : at + 8], "little", signed=True) for at in range(start, start + ROW_BYTES, 8)]
        first = sum(weight * word for weight, word in zip(weights, words, strict=True))
        second = sum(weight * (word >> 32) for weight, word in zip(other, words, strict=True))
        sums.append([first & MASK, second & MASK])
    return sums


@pytest.mark.parametrize("size", SIZES)
def test_row_sums_are_the_documented_formula(size: int) -> None:
    data = random_bytes(random.Random(size), size)
    out = new_rows(size)
    row_sums(data, out)
    assert [[value & MASK for value in row] for row in out.tolist()] == by_the_book(bytes(memory(data)))


@pytest.mark.parametrize("size", SIZES)
def test_memory_that_is_not_aligned_gives_the_same_digest(size: int) -> None:
    data = random_bytes(random.Random(size), size + 3)
    assert digest(data[3:]) == digest(data[3:].clone())


def test_a_digest_is_sixteen_hex_digits_and_never_changes() -> None:
    assert re.fullmatch("[0-9a-f]{16}", digest(torch.rand(5)))
    # Two machines of one job, or a checkpoint and its reader, may run different versions.
    assert digest(torch.arange(5000)) == "fc53b2e41b709c71"
    assert digest(torch.arange(5)) == "5da64e473c6d780d"


def test_every_single_flipped_bit_changes_the_digest() -> None:
    chance = random.Random(20)
    for size in (1, 8, 100, ROW_BYTES + 40):
        data = random_bytes(chance, size)
        before = digest(data)
        for bit in chance.sample(range(8 * size), min(8 * size, 300)):
            data[bit // 8] ^= 1 << bit % 8
            assert digest(data) != before
            data[bit // 8] ^= 1 << bit % 8
        assert digest(data) == before


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_flipped_signs_never_cancel(dtype: torch.dtype) -> None:
    chance = random.Random(21)
    values = torch.rand(4096, generator=torch.Generator().manual_seed(1)).to(dtype)
    seen = {digest(values), digest(-values)}
    for pairs in range(200):
        changed = values.clone()
        places = chance.sample(range(4096), 2 + 2 * (pairs % 4))
        changed[places] = -changed[places]
        seen.add(digest(changed))
    assert len(seen) == 202


def test_swapped_elements_and_rows_change_the_digest() -> None:
    chance = random.Random(22)
    # Zeros and ones differ in few, high bits: the hardest to tell apart.
    values = torch.eye(64, dtype=torch.float64).reshape(-1)
    seen = {digest(values)}
    for one in range(64):
        changed = values.clone()
        other = chance.choice([i for i in range(4096) if i % 65])
        changed[one * 65], changed[other] = 0.0, 1.0
        seen.add(digest(changed))
    assert len(seen) == 65
    large = torch.arange(8 * 1024).reshape(8, 1024)
    assert digest(large) != digest(large[[1, 0, 2, 3, 4, 5, 6, 7]])
    permutations = {digest(torch.eye(16)[torch.randperm(16)]) for _ in range(100)}
    assert len(permutations) == 100


def test_shape_dtype_and_trailing_zeros_count() -> None:
    zeros = [torch.zeros(n) for n in (0, 1, 2, 3, 2048, 2049)]
    variants = [*zeros, torch.zeros(1, 2), torch.zeros(2, dtype=torch.int32), torch.zeros(0, 3), torch.tensor(0.0)]
    assert len({digest(v) for v in variants}) == len(variants)


def test_negative_zero_and_payloads_of_nan_count() -> None:
    assert digest(torch.tensor([0.0])) != digest(torch.tensor([-0.0]))
    quiet, other = (torch.tensor([bits], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, 0x7FC00001))
    assert torch.isnan(quiet).all()
    assert digest(quiet) != digest(other)


def test_layout_in_memory_does_not_count() -> None:
    values = torch.rand(2, 3, 40, 50)
    assert digest(values) == digest(values.to(memory_format=torch.channels_last))
    assert digest(values.transpose(1, 2)) == digest(values.transpose(1, 2).contiguous())


def test_many_at_once_are_as_one_by_one() -> None:
    tensors = {f"t{n}": torch.rand(n) for n in [*range(80), 2048, 2049, 100_000]}
    assert digests(tensors) == {path: digest(tensor) for path, tensor in tensors.items()}
    assert digests({}) == {}


def test_the_path_for_devices_gives_the_same_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    data = random_bytes(random.Random(3), 70 * ROW_BYTES + 5)
    host = new_rows(data.numel())
    row_sums(data, host)
    small = [torch.rand(n) for n in (1, 9, 2048)]
    expected = torch.cat([new_rows(tensor.numel() * 4) for tensor in small])
    for tensor, out in zip(small, expected.unsafe_split(1), strict=True):
        row_sums(flat_bytes(tensor), out)
    monkeypatch.setattr(torch, "mv", module._mv_on_device)
    device = new_rows(data.numel())
    row_sums(data, device)
    assert torch.equal(device, host)
    found = torch.empty_like(expected)
    module._small_device_sums(small, found)
    assert torch.equal(found, expected)


def test_a_complemented_word_changes_the_digest() -> None:
    chance = random.Random(23)
    assert digest(torch.tensor([0])) != digest(torch.tensor([-1]))
    for _ in range(100):
        values = torch.tensor([chance.getrandbits(63) for _ in range(8)])
        changed = values.clone()
        changed[chance.randrange(8)] ^= -1
        assert digest(changed) != digest(values)


def test_an_unsupported_tensor_is_named() -> None:
    with pytest.raises(UnsupportedError, match="embedding"):
        digests({"embedding": torch.eye(3).to_sparse()})
