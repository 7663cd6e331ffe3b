from __future__ import annotations

import pytest

from torchrelay.cli.command_line.times import time_s
from torchrelay.protocol.errors import UserError


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90.0), ("30m", 1800.0), ("1.5h", 5400.0), ("0", 0.0), ("0s", 0.0)]
)
def test_a_time_is_read_with_its_unit(text: str, seconds: float) -> None:
    assert time_s("--rehearse-every", text) == seconds


@pytest.mark.parametrize("text", ["30", "m", "-1s", "1d", ""])
def test_a_time_without_a_unit_is_no_time(text: str) -> None:
    with pytest.raises(UserError, match="give a time with its unit"):
        time_s("--rehearse-every", text)
