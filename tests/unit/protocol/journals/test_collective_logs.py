from __future__ import annotations

import pytest

from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.journals import collective_logs


def test_what_was_joined_comes_apart_again() -> None:
    logs = [b"one", b"", b"three" * 100]
    assert collective_logs.split(collective_logs.join(logs)) == logs
    assert collective_logs.split(collective_logs.join([])) == []


@pytest.mark.parametrize("cut", [1, 7, 9, 10])
def test_a_message_that_was_cut_short_is_refused(cut: int) -> None:
    with pytest.raises(FrameError, match="end within"):
        collective_logs.split(collective_logs.join([b"one"])[:cut])
