from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

import pytest

from torchrelay.protocol.transport.unix_socket import MOST_BYTES, reachable


def held_open(folder: Path) -> list[int]:
    """The descriptors that refer to it. Others come and go as the threads that other tests have left do."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since
            if os.readlink(f"/proc/self/fd/{descriptor}") == str(folder):
                found.append(int(descriptor))
    return found


@pytest.mark.parametrize("folder", ["s", "long" * 40, "länger" * 30])
def test_a_socket_is_reached_however_long_its_path_is(folder: str, tmp_path: Path) -> None:
    path = tmp_path / folder / "agent.sock"
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        with reachable(str(path)) as short:
            server.bind(short)
        server.listen(1)
        assert path.is_socket()
        with reachable(str(path)) as short:
            assert len(os.fsencode(short)) <= MOST_BYTES
            client.connect(short)
    assert not held_open(path.parent)


def test_the_longest_path_that_the_kernel_takes_is_used_as_it_is(tmp_path: Path) -> None:
    path = str(tmp_path / ("a" * (MOST_BYTES - len(str(tmp_path)) - 1)))
    with reachable(path) as short, socket.socket(socket.AF_UNIX) as server:
        assert short == path
        server.bind(short)


def test_a_folder_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), reachable(str(tmp_path / ("gone" * 40) / "agent.sock")):
        pass
