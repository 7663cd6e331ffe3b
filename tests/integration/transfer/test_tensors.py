from __future__ import annotations

import os
import socket
import threading
import time

import pytest
import torch
from integration.transfer.transfer_harness import blank, donor_process, serving, take, tensors_of_donor_program

from torchrelay.protocol.errors import ChannelClosedError, RefusedError, StateMismatchError, UnsupportedError
from torchrelay.shim.tensors.digest import digests
from torchrelay.shim.transfer import TensorInfo, receiver
from torchrelay.shim.transfer import donor as donor_module
from torchrelay.shim.transfer.layout import CHUNK_BYTES

pytestmark = pytest.mark.core

DTYPES = sorted(
    {
        v
        for v in vars(torch).values()
        if isinstance(v, torch.dtype) and not str(v).startswith("torch.q") and v != torch.complex32
    },
    key=str,
)


def of_every_kind() -> dict[str, torch.Tensor]:
    chance = torch.Generator().manual_seed(11)
    tensors: dict[str, torch.Tensor] = {}
    for dtype in DTYPES:
        for size in (1, 3, 700, 30_000):
            data = torch.randint(0, 2, (size * dtype.itemsize,), dtype=torch.uint8, generator=chance)
            tensors[f"{dtype}.{size}"] = data.view(dtype)
    return tensors | {
        "scalar": torch.tensor(3.5),
        "empty": torch.empty(0),
        "empty.2d": torch.empty(4, 0, dtype=torch.int64),
        "nan": torch.tensor([0x7FC00001, -1], dtype=torch.int32).view(torch.float32),
        "negative zero": torch.tensor([-0.0]),
        "parameter": torch.nn.Parameter(torch.rand(70, generator=chance)),
        "channels last": torch.rand(4, 30, 40, 50, generator=chance).to(memory_format=torch.channels_last),
        "transposed": torch.rand(300, 500, generator=chance).t(),
        "small transposed": torch.rand(3, 5, generator=chance).t(),
        "misaligned": torch.randint(0, 256, (50_001,), dtype=torch.uint8, generator=chance)[1:],
        "several chunks": torch.rand(3 * CHUNK_BYTES // 4 + 5, generator=chance),
        "conjugated": torch.view_as_complex(torch.rand(3000, 2, generator=chance)).conj(),
    }


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    def bits(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach().resolve_conj().contiguous().reshape(-1).view(torch.uint8)

    return torch.equal(bits(one), bits(other))


@pytest.mark.parametrize("connections", [1, 4])
def test_every_kind_of_tensor_arrives_bitwise(connections: int) -> None:
    tensors = of_every_kind()
    destinations = blank(tensors)
    # Neither side's layout in memory has to be the other's.
    destinations["channels last"] = torch.zeros(4, 30, 40, 50)
    destinations["several chunks"] = torch.zeros(2 * tensors["several chunks"].numel())[::2]
    destinations["scalar"] = torch.zeros(5)[3]
    destinations["parameter"] = torch.nn.Parameter(torch.zeros(70))
    addresses = {path: tensor.data_ptr() for path, tensor in destinations.items()}
    with serving(tensors) as (donor, port, log):
        stats = take(port, destinations, connections=connections)
        assert donor.wait(60)
    assert [path for path in tensors if not same_bits(tensors[path], destinations[path])] == []
    assert addresses == {path: tensor.data_ptr() for path, tensor in destinations.items()}
    assert stats.digests() == digests(tensors) == digests(destinations)
    assert stats.tensors == len(tensors)
    assert stats.size_bytes == sum(t.numel() * t.element_size() for t in tensors.values())
    assert stats.elapsed_s > 0
    assert stats.chunks_asked_again == 0
    assert log == []


def test_large_and_thousands_of_tiny_tensors_go_from_process_to_process() -> None:
    tensors = tensors_of_donor_program()
    destinations = blank(tensors)
    with donor_process() as (process, port):
        take(port, destinations)
        assert process.stdout is not None
        assert process.stdout.read() == "done\n"
        assert process.wait() == 0
    assert all(torch.equal(tensors[path], destinations[path]) for path in tensors)


@pytest.mark.parametrize("tensors", [{}, {"empty": torch.empty(0)}], ids=["no tensor", "no byte"])
def test_nothing_to_transfer_is_a_transfer_too(tensors: dict[str, torch.Tensor]) -> None:
    with serving(tensors) as (donor, port, _):
        stats = take(port, blank(tensors))
        assert donor.wait(60)
    assert (stats.size_bytes, stats.tensors) == (0, len(tensors))


def test_ipv6_works_as_ipv4() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    tensors = {"a": torch.rand(100_000)}
    for bind, peer in (("::1", "::1"), ("::", "::1")):
        destinations = blank(tensors)
        with serving(tensors, bind_host=bind, peer_host=peer) as (_, port, _log):
            take(port, destinations, host="::1")
        assert torch.equal(tensors["a"], destinations["a"])


def test_a_second_receiver_gets_the_same() -> None:
    tensors = {"a": torch.rand(100_000), "b": torch.rand(50, 3000).t()}
    with serving(tensors) as (_, port, _log):
        for _ in range(2):
            destinations = blank(tensors)
            take(port, destinations)
            assert torch.equal(tensors["a"], destinations["a"])
            assert torch.equal(tensors["b"], destinations["b"])


def test_place_sees_what_the_donor_has() -> None:
    seen: list[TensorInfo] = []
    tensors = {"w": torch.rand(3, 4).to(torch.bfloat16), "n": torch.tensor(1)}
    destinations = blank(tensors)

    def place(infos: object) -> dict[str, torch.Tensor]:
        seen.extend(infos)  # type: ignore[call-overload]  # declared wider than it is here
        return destinations

    with serving(tensors) as (_, port, _log):
        take(port, {}, place=place)
    assert seen == [TensorInfo("w", torch.bfloat16, (3, 4), 24), TensorInfo("n", torch.int64, (), 8)]


@pytest.mark.parametrize(
    ("destination", "path"),
    [
        ({}, "layer.weight"),
        ({"layer.weight": torch.zeros(3, 2)}, "layer.weight"),
        ({"layer.weight": torch.zeros(2, 3, dtype=torch.half)}, "layer.weight"),
        ({"layer.weight": torch.zeros(2, 3), "layer.bias": torch.zeros(1)}, "layer.bias"),
    ],
    ids=["missing", "shape", "dtype", "surplus"],
)
def test_a_destination_that_does_not_fit_is_named(destination: dict[str, torch.Tensor], path: str) -> None:
    with serving({"layer.weight": torch.rand(2, 3)}) as (donor, port, log):
        with pytest.raises(StateMismatchError, match=path):
            take(port, destination)
        assert not donor.wait(0)
        # The donor is there for another attempt.
        take(port, {"layer.weight": torch.zeros(2, 3)})
        assert donor.wait(60)
        assert log == []


def test_a_closed_donor_leaves_no_thread_and_no_listener() -> None:
    before = set(threading.enumerate())
    with serving({"a": torch.rand(10)}) as (donor, port, _):
        silent = socket.create_connection(("127.0.0.1", port))
        take(port, {"a": torch.zeros(10)})
        donor.close()
        donor.close()
        assert set(threading.enumerate()) <= before
        with pytest.raises(ChannelClosedError, match="cannot be reached"):
            take(port, {"a": torch.zeros(10)})
        silent.close()


def test_a_donor_is_closed_at_once_when_other_threads_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that waits for connections looks at its descriptor again when it is woken: it must still be its own."""
    opened = [*os.pipe()]

    class Reused(socket.socket):
        def close(self) -> None:
            if self.fileno() >= 0:
                opened.append(os.dup2(opened[0], self.detach()))

    monkeypatch.setattr(socket, "socket", Reused)
    for _ in range(20):
        with serving({"a": torch.rand(10)}, deadline_s=30.0) as (donor, _port, _log):
            started_s = time.monotonic()
            donor.close()
            assert time.monotonic() - started_s < 15.0
    for descriptor in opened:
        os.close(descriptor)


def test_a_donor_stops_at_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also who came before it, and would have had more time to introduce itself."""
    monkeypatch.setattr(donor_module, "_HELLO_DEADLINE_S", 600.0)
    with serving({"a": torch.rand(10)}, deadline_s=4.0) as (_, port, _log):
        silent = socket.create_connection(("127.0.0.1", port))
        silent.settimeout(60)
        while silent.recv(1000):
            pass
        silent.close()
        with pytest.raises(ChannelClosedError):
            take(port, {"a": torch.zeros(10)})


def test_a_donor_that_says_nothing_is_given_up_at_the_deadline() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        with pytest.raises(ChannelClosedError, match="in time"):
            take(silent.getsockname()[1], {}, deadline_s=3.0)
        assert time.monotonic() - started < 12, "in the middle of a message it would have had 15 s"


def test_a_donor_with_a_wrong_address_or_tensor_says_so() -> None:
    with pytest.raises(ChannelClosedError, match=r"192\.0\.2\.1"), serving({}, bind_host="192.0.2.1"):
        pass
    with pytest.raises(RefusedError, match=r"no\.such\.host"), serving({}, peer_host="no.such.host.invalid"):
        pass
    with pytest.raises(UnsupportedError, match="sparse one"), serving({"sparse one": torch.eye(2).to_sparse()}):
        pass


def test_who_waits_for_the_connections_is_told_how_far_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "EVERY_S", 0.0001)
    tensors = {f"t{number}": torch.rand(3 * CHUNK_BYTES // 4) for number in range(20)}
    told: list[tuple[int, int]] = []
    with serving(tensors) as (_, port, _):
        took = take(port, blank(tensors), moved=lambda done, total: told.append((done, total)))
    assert told
    assert told == sorted(told)
    assert {total for _, total in told} == {took.size_bytes}
