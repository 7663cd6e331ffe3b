from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from torchrelay.protocol.errors import RefusedError, TorchrelayError
from torchrelay.protocol.journals.kept import open_slot
from torchrelay.protocol.logs.log_lines import LogLines, LogPart
from torchrelay.protocol.messages import OrderFailed, Serve, Serving
from torchrelay.protocol.security.transfer_protection import INTEGRITY
from torchrelay.shim.replicas.kept_tensors import DATA_NAME, KeptTensors
from torchrelay.shim.replicas.lender import CopyServer
from torchrelay.shim.transfer import receive

HERE, BOUNDARY, GENERATION = "127.0.0.1", 6, 2


class Link:
    identity = ""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, report: Any) -> None:
        self.sent.append(report)


@pytest.fixture
def link() -> Link:
    return Link()


@pytest.fixture
def lender(link: Link) -> Iterator[CopyServer]:
    lender = CopyServer(link, HERE, INTEGRITY, LogLines(LogPart.SHIM))  # type: ignore[arg-type]  # a stand-in
    yield lender
    lender.close()


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    kept = KeptTensors(tmp_path)
    kept.fill({"w": torch.arange(5000.0), "step": torch.tensor(17)})
    kept.seal(BOUNDARY)
    return tmp_path


def fetched(port: int, token: str = "right", generation: int = GENERATION) -> dict[str, torch.Tensor]:
    there = {"w": torch.zeros(5000), "step": torch.tensor(0)}
    receive(HERE, port, generation=generation, token=token, place=lambda infos: there, deadline_s=10.0)
    return there


def served(lender: CopyServer, link: Link, folder: Path, boundary: int = BOUNDARY, peer: str = HERE) -> Any:
    lender.serve(Serve(GENERATION, boundary, "right", peer, str(folder)))
    return link.sent[-1]


def test_the_copy_is_given_to_whoever_has_the_token_and_nobody_else(lender: CopyServer, link: Link, copy: Path) -> None:
    answer = served(lender, link, copy)
    assert (type(answer), answer.generation, answer.host) == (Serving, GENERATION, HERE)
    for token, generation in (("wrong", GENERATION), ("right", GENERATION - 1)):
        with pytest.raises(RefusedError):
            fetched(answer.port, token, generation)
    there = fetched(answer.port)
    assert torch.equal(there["w"], torch.arange(5000.0))
    assert there["step"] == 17


def test_a_peer_at_another_address_than_the_one_that_was_named_gets_nothing(
    lender: CopyServer, link: Link, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = served(lender, link, copy, peer="127.0.0.9")
    with pytest.raises(TorchrelayError):
        fetched(answer.port)
    assert "not the address of the peer that was named" in capsys.readouterr().err


def test_a_copy_of_another_step_is_not_given(lender: CopyServer, link: Link, copy: Path) -> None:
    answer = served(lender, link, copy, boundary=9)
    assert isinstance(answer, OrderFailed)
    assert answer.order == "Serve"
    assert answer.reason == f"{copy} holds the copy of boundary 6, not 9"


def test_half_a_copy_is_not_given(lender: CopyServer, link: Link, copy: Path) -> None:
    open_slot(copy)  # as whoever fetches the next one does first
    answer = served(lender, link, copy)
    assert isinstance(answer, OrderFailed)
    assert "holds no whole copy" in answer.reason


@pytest.mark.parametrize("cut", [0, 4000])
def test_a_copy_whose_bytes_are_not_what_was_copied_is_not_given(
    cut: int, lender: CopyServer, link: Link, copy: Path
) -> None:
    with open(copy / DATA_NAME, "r+b") as f:
        if cut:
            f.truncate(cut)
        else:
            f.seek(1000)
            f.write(b"\xff")
    answer = served(lender, link, copy)
    assert isinstance(answer, OrderFailed)
    assert "the content of w is not what was copied" in answer.reason


def test_after_the_migration_nothing_is_given(lender: CopyServer, link: Link, copy: Path) -> None:
    port = served(lender, link, copy).port
    lender.close()
    with pytest.raises(TorchrelayError):
        fetched(port)
