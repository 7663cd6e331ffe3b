from __future__ import annotations

import io

from rich.console import Console

from torchrelay.cli.waiting import waiting


def shown(console: Console) -> str:
    with waiting(console, "faults", 4) as are_done:
        for done in range(1, 5):
            console.print(f"{done}/4 identical")
            are_done(done)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_has_a_bar_below_the_lines_and_elsewhere_there_are_only_lines() -> None:
    terminal = shown(Console(file=io.StringIO(), force_terminal=True, width=100, highlight=False))
    assert "torchrelay: faults" in terminal
    assert "left:" in terminal
    assert "4/4 identical" in terminal
    assert shown(Console(file=io.StringIO(), width=100)) == "".join(f"{n}/4 identical\n" for n in range(1, 5))
