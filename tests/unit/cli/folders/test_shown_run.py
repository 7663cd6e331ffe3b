"""What people are shown of a run: nothing that only its user should know, and a command that a shell takes."""

from __future__ import annotations

import shlex

import pytest

from torchrelay.cli.folders.shown_run import name_start_and_folder, shown_command


@pytest.mark.parametrize("given", [("--notify", "https://hooks/of-mine"), ("--notify=https://hooks/of-mine",)])
def test_the_url_of_a_webhook_is_left_out(given: tuple[str, ...]) -> None:
    shown = shown_command(("run", *given, "--notify-format", "slack", "train.py"))
    assert "of-mine" not in shown
    assert shown.endswith("URL --notify-format slack train.py")


def test_words_with_spaces_are_one_word_to_a_shell() -> None:
    words = ("run", "--name", "my run", "train.py", "a 'b'")
    assert shlex.split(shown_command(words)) == ["torchrelay", *words]


def test_what_is_not_known_is_left_out() -> None:
    assert name_start_and_folder("pretrain", 0.0, "") == "pretrain"
    assert name_start_and_folder("", 0.0, "/data") == "in /data"
