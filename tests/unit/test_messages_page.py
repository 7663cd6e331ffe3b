"""The page of messages has every text that a command can refuse something with, as it stands in the code."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.repository_script import script

t, in_code = script("texts_in_code"), script("messages_in_code")

CODE = """
HINT = "hint: torchrelay status"

def _why(name):
    return f"{name} is gone" if name else "nobody is there"

def asked(given, wrong, e):
    if wrong:
        raise UserError(f"--spares {given.spares}: give {'a number' if given else 'none'}\\n{HINT}")
    if given:
        raise UserError(_why(given)) from e
    if not given:
        raise ValueError("of no user")
    console.print(narrate.line(f"{count(len(given), 'rank')} moved: {e}"))
    console.print(given)
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    (tmp_path / "sample_of_a_test.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path)
    return t.read(tmp_path / "sample_of_a_test.py", "sample_of_a_test")


def test_a_refusal_is_read_with_its_values_as_words_and_each_of_its_variants(source: object) -> None:
    assert list(t.raised(source, ("UserError",))) == [
        [
            "--spares SPARES: give a number\nhint: torchrelay status",
            "--spares SPARES: give none\nhint: torchrelay status",
        ],
        ["NAME is gone", "nobody is there"],
    ]


def test_an_answer_is_read_and_what_is_no_text_is_not(source: object) -> None:
    assert list(t.said(source, {"line": 0, "print": 0})) == [("line", ["GIVEN moved: WHY"], "")]


HELD_IN_VARIABLES = """
def shown(name, by, error):
    text = f"{name} is gone"
    more = f", as {by} says" if by else ""
    gaps.append(Gap("kind", BARS, text))
    gaps.append(Gap("kind", BARS, f"{text}{more}: no rank can be replaced"))
    log.say(f"{str(error).removeprefix('torchrelay: ')}; it is left")
"""


def test_a_text_that_a_variable_holds_is_read_where_it_is_told(tmp_path: Path) -> None:
    (tmp_path / "holds.py").write_text(HELD_IN_VARIABLES)
    assert list(t.made(t.read(tmp_path / "holds.py"), {"Gap": 2, "say": 0})) == [
        ["NAME is gone"],
        ["NAME is gone, as BY says: no rank can be replaced", "NAME is gone: no rank can be replaced"],
        ["WHY; it is left"],
    ]


@pytest.mark.parametrize("title", in_code.ELSEWHERE)
def test_whatever_is_told_elsewhere_is_on_the_page(title: str) -> None:
    """By ranks, in the report, in notices and in Kubernetes: whoever adds one runs the page's script."""
    page = (in_code.ROOT / "docs" / "messages.md").read_text("utf-8")
    _, _, section = page.partition(f"### Elsewhere: {title}\n")
    shown = section.partition("\n### ")[0].splitlines()
    told = [text for place in in_code.ELSEWHERE[title] for text in in_code._told(place)]
    assert len(told) >= 4
    assert [text for text in told if text.splitlines()[0].rstrip() not in shown] == []


def test_every_refusal_of_the_commands_has_words_on_the_page() -> None:
    page = (in_code.ROOT / "docs" / "messages.md").read_text("utf-8")
    found, silent = 0, []
    for files in in_code._by_title().values():
        for file in files:
            for variants in t.raised(t.read(file, in_code._module(file)), in_code.REFUSALS):
                found += 1
                worded = [text for text in variants if text not in (t.UNKNOWN, "WHY")]
                if not worded:
                    silent.append(file.name)
                for text in worded:
                    assert f"error: {text.splitlines()[0]}".rstrip() in page
    assert found > 250
    # What these say is put together elsewhere: a list of findings, a reason that is handed on.
    assert sorted(set(silent)) == SILENT


SILENT = ["checks.py", "folder.py", "inject.py"]
