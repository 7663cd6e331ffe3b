"""Numbers and lists as people read them."""

from __future__ import annotations

import pytest

from torchrelay.dashboard import words


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.004, "0.00 s"),
        (0.59, "0.59 s"),
        (0.999, "1.0 s"),
        (9.96, "10 s"),
        (59.6, "1 min"),
        (200, "3 min 20 s"),
        (3600, "1 h"),
        (7500, "2 h 5 min"),
        (100_000, "1 d 3 h"),
    ],
)
def test_durations_have_two_parts_at_most(seconds: float, text: str) -> None:
    assert words.duration(seconds) == text


def test_what_is_not_whole_is_never_rounded_up_to_all() -> None:
    assert words.percent(0.99999) == "99.9 %"
    assert words.percent(1.0) == "100 %"


def test_a_long_list_names_the_first_and_counts_the_others() -> None:
    assert words.ranks([3]) == "rank 3"
    assert words.ranks([1, 2, 3]) == "ranks 1, 2 and 3"
    assert words.ranks(list(range(5))) == "ranks 0, 1, 2, 3 and 4"
    assert words.ranks(list(range(100))) == "ranks 0, 1, 2, 3 and 96 more"
    assert words.listed([]) == ""


def test_a_sentence_begins_with_a_capital_letter_unless_with_a_name() -> None:
    assert words.sentence("rank 1 is lost") == "Rank 1 is lost."
    assert words.sentence("n0.s0 has it.") == "n0.s0 has it."
    assert words.sentence(" ") == ""


def test_sizes_have_binary_units() -> None:
    assert [words.size(n) for n in (512, 7316132, 5 << 40)] == ["512 B", "7.0 MiB", "5.0 TiB"]
