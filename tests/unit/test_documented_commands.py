"""Each command of ours that the docs tell to type is one: its words, options and values are read as the program reads them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from support.command_lines import WrongCommandError, commands, in_blocks, in_text, look, read
from support.documented import (
    BY_OTHERS,
    FOLLOWED,
    IN_SENTENCES,
    ONLY_READ,
    ROOT,
    TYPED,
    commands_of_pages,
    followed,
    pages,
)

PAGES = pages()


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_commands_of_a_page_are_read(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, wrong = page.read_text("utf-8"), []
    for words in in_blocks(text):
        try:
            read(words)
        except WrongCommandError as e:
            wrong.append(str(e))
    for words in in_text(text):
        if words[-1] in ("…", "...") and len(words) <= 3:
            continue  # stands for all of them
        try:
            look(words)
        except WrongCommandError as e:
            wrong.append(str(e))
    assert wrong == []


def test_each_command_of_the_pages_is_typed_by_a_test_or_it_is_said_why_not() -> None:
    """A command that is new on a page belongs into tests/support/documented.py."""
    assert set(commands_of_pages()) == {*TYPED, *ONLY_READ}
    assert [command for command in ONLY_READ if command in TYPED] == []
    assert {page.name for page in PAGES} >= set(FOLLOWED)


def test_every_command_of_both_programs_is_in_a_block_or_has_tests_that_are_named() -> None:
    written = [*TYPED, *ONLY_READ, *IN_SENTENCES, *followed()]
    missing = {name for name, _ in commands() if not any(f"{line} ".startswith(f"{name} ") for line in written)}
    assert missing == set(BY_OTHERS)
    in_sentences = [shlex.join(words) for page in PAGES for words in in_text(page.read_text("utf-8"))]
    assert set(IN_SENTENCES) <= set(in_sentences)


def test_what_is_said_to_run_a_command_instead_is_there() -> None:
    for why in (*ONLY_READ.values(), *BY_OTHERS.values()):
        for named in re.findall(r"tests/[\w/]+(?:\.py)?", why):
            assert (ROOT / named).exists(), why


def test_a_command_ends_where_its_streams_are_led_elsewhere() -> None:
    (words,) = in_blocks("```sh\ntorchrelay status --watch 2> status.txt | tee x\n```\n")
    assert words == ["torchrelay", "status", "--watch"]


def test_the_commands_of_the_pages_are_found() -> None:
    found = [shlex.join(words) for page in PAGES for words in in_blocks(page.read_text("utf-8"))]
    programs = re.findall(r"^(?:kubectl )?torchrelay (\w+)", "\n".join(found), re.MULTILINE)
    assert {"run", "check", "drill", "doctor", "status", "migrate", "inject", "bench", "dashboard"} <= set(programs)
    assert len(found) > 60


@pytest.mark.parametrize(
    "block",
    [
        "```\ntorchrelay frobnicate\n```\n",
        "```sh\nexport A=1 && torchrelay status --nowhere | jq .\n```\n",
        "```\nMASTER_PORT=1 torchrelay migrate --rank 2\n```\n",
        "```\nsrun torchrelay run --nowhere \\\n  train.py\n```\n",
        "```\nsrun --no-kill --kill-on-bad-exit=0 torchrelay run --nowhere train.py\n```\n",
        "1. so:\n\n   ```\n   kubectl torchrelay drain --reason x\n   ```\n",
    ],
)
def test_a_wrong_command_in_a_block_is_found(block: str) -> None:
    (words,) = in_blocks(block)
    with pytest.raises(WrongCommandError):
        read(words)


@pytest.mark.parametrize("text", ["see `torchrelay stats`", "see `torchrelay run --spores 0`"])
def test_a_wrong_command_in_a_sentence_is_found(text: str) -> None:
    (words,) = in_text(text)
    with pytest.raises(WrongCommandError):
        look(words)
