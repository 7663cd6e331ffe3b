from __future__ import annotations

import io

from rich.console import Console

from torchrelay.cli.display.waiting import waiting, waiting_for_bytes
from torchrelay.protocol.events import MigrationProgressed


def shown(console: Console) -> str:
    with waiting(console, "faults", 4) as are_done:
        for done in range(1, 5):
            console.print(f"{done}/4 identical")
            are_done(done)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_has_a_bar_below_the_lines_and_elsewhere_there_are_only_lines() -> None:
    terminal = shown(Console(file=io.StringIO(), force_terminal=True, width=100, highlight=False))
    assert "faults" in terminal
    assert "left:" in terminal
    assert "4/4 identical" in terminal
    assert shown(Console(file=io.StringIO(), width=100)) == "".join(f"{n}/4 identical\n" for n in range(1, 5))


def test_tensors_on_their_way_have_a_bar_with_rate_and_time_left_on_a_terminal_alone() -> None:
    half = MigrationProgressed("m1", "transfer", 1 << 30, 2 << 30, 4.0, float(1 << 28), 4.0)
    for terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=100, highlight=False)
        with waiting_for_bytes(console) as how_far:
            how_far(None)
            how_far(half)
        assert isinstance(console.file, io.StringIO)
        told = console.file.getvalue()
        assert ("50 %, 4.0 s left (1.0 GiB of 2.0 GiB at 256.0 MiB/s)" in told) is terminal
        assert bool(told) is terminal
