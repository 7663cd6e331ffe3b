from __future__ import annotations

import pickle

import pytest

from torchrelay.protocol.errors import JournalError
from torchrelay.shim import payload
from torchrelay.shim.capture import rng

HEAD = payload.HeadState([], rng.RngState(b"", b""))


def test_a_record_comes_back_as_it_was() -> None:
    assert payload.load(payload.dump(HEAD), payload.HeadState) == HEAD


@pytest.mark.parametrize("data", [b"", b"garbage", pickle.dumps(HEAD)[:-5], b"cno_such_module\nname\n."])
def test_what_cannot_be_read_is_an_error_of_the_journal(data: bytes) -> None:
    with pytest.raises(JournalError, match="cannot be read here"):
        payload.load(data, payload.HeadState)


def test_a_record_of_another_kind_is_refused() -> None:
    with pytest.raises(JournalError, match="expected GateJournal in the journal, found HeadState"):
        payload.load(payload.dump(HEAD), payload.GateJournal)
