"""Tables on terminals of any width, and in pipes."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.table import Table
from rich.text import Text

from torchrelay.cli.display.fitting_table import table_of

REASON = "rank 1 (llama-1) was killed by SIGKILL while it waited for the others at the gate"


def table() -> Table:
    made = table_of("migration", "rank", "outcome", "asked by", "reason", right=("rank",))
    made.add_row("pretrain-m1", "1", Text("committed", style="green"), "", Text(REASON))
    made.add_row("pretrain-m2", "12", "abandoned", "alice", "")
    return made


def shown(width: int, is_terminal: bool = True, made: Table | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=width, force_terminal=is_terminal, no_color=True, color_system=None)
    console.print(made or table(), soft_wrap=not is_terminal)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_with_room_it_is_a_table_whose_reasons_are_broken_between_words() -> None:
    head, first, *more = shown(100)
    assert head == "migration    rank  outcome    asked by  reason"
    assert first.startswith("pretrain-m1     1  committed            rank 1 (llama-1) was")
    assert "pretrain-m2    12  abandoned  alice" in more


def test_with_less_the_reason_goes_below_its_row() -> None:
    assert shown(60) == [
        "migration    rank  outcome    asked by",
        "pretrain-m1     1  committed",
        "    rank 1 (llama-1) was killed by SIGKILL while it waited",
        "    for the others at the gate",
        "pretrain-m2    12  abandoned  alice",
    ]


def test_with_hardly_any_each_cell_is_said_with_its_name() -> None:
    assert shown(32) == [
        "pretrain-m1: rank 1, outcome",
        "committed",
        "    rank 1 (llama-1) was killed",
        "    by SIGKILL while it waited",
        "    for the others at the gate",
        "pretrain-m2: rank 12, outcome",
        "abandoned, asked by alice",
    ]


@pytest.mark.parametrize("width", [20, 32, 50, 64, 80, 132])
def test_nothing_is_cut_off(width: int) -> None:
    told = " ".join(" ".join(shown(width)).split())
    assert "…" not in told
    assert all(word in told for word in (*REASON.split(), "pretrain-m2", "12", "abandoned", "alice"))


def test_in_a_pipe_each_row_is_one_line() -> None:
    _, first, second = shown(40, is_terminal=False)
    assert first.endswith(REASON)
    assert second.split() == ["pretrain-m2", "12", "abandoned", "alice"]


def test_a_table_without_words_stays_one_until_it_does_not_fit() -> None:
    made = table_of("rank", "pod", "node")
    made.add_row("0", "llama-0", "n0")
    assert shown(20, made=made)[1].split() == ["0", "llama-0", "n0"]
    assert shown(12, made=made) == ["0: pod", "llama-0,", "node n0"]
