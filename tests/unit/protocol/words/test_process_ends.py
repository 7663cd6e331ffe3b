"""How a process ended, in words."""

from __future__ import annotations

import pytest

from torchrelay.protocol.words.process_ends import how_ended


@pytest.mark.parametrize(
    ("signal_number", "exit_code", "said"),
    [
        (9, 0, "was killed by SIGKILL"),
        (0, 3, "ended with exit code 3"),
        (0, 0, "ended with exit code 0"),
        (99, 0, "was killed by signal 99"),
    ],
)
def test_the_end_of_a_process_is_said_as_a_signal_by_its_name_or_as_its_exit_code(
    signal_number: int, exit_code: int, said: str
) -> None:
    assert how_ended(signal_number, exit_code) == said
