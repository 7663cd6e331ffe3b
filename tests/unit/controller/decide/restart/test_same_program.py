"""Machines of one job that were not told the same."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from torchrelay.controller.decide.restart.same_program import ProgramAgreement, agree, imports_key
from torchrelay.protocol.messages import Program

ONE = Program("/w/src/train.py", "aa", {"train.py": "1", "model.py": "2"}, "3.11.7", "2.13.0", ("kill:rank=1,step=3",))


def with_other(**changes: Any) -> ProgramAgreement:
    return agree("n0", ONE, "n1", dataclasses.replace(ONE, **changes))


def test_what_is_the_same_or_not_known_is_no_difference() -> None:
    assert with_other() == ProgramAgreement()
    assert agree("n0", ONE, "n1", Program()) == ProgramAgreement()
    assert agree("n0", Program(), "n1", ONE) == ProgramAgreement()
    assert with_other(resume_command="torchrelay run --node-rank 1") == ProgramAgreement()


@pytest.mark.parametrize(
    ("changes", "both", "remedy"),
    [
        ({"script": "/w/code/train.py"}, ("/w/src/train.py", "/w/code/train.py"), "at the same path"),
        ({"sha256": "bb"}, ("/w/src/train.py", "n0", "n1"), "put the same one"),
        ({"torch": "2.12.0"}, ("2.13.0", "2.12.0"), "install the same version"),
        ({"python": "3.12.1"}, ("3.11.7", "3.12.1"), "use the same version"),
        ({"inject": ()}, ("kill:rank=1,step=3 on n0", "none on n1"), "Give the same"),
    ],
)
def test_a_difference_is_refused_with_both_and_what_to_do(
    changes: dict[str, Any], both: tuple[str, ...], remedy: str
) -> None:
    (text,) = with_other(**changes).refused
    assert all(word in text for word in both)
    assert remedy in text


SHARES = dataclasses.replace(ONE, jit_dirs=("/nfs/jit", "/more"), jit_marks=("a", "b"))


@pytest.mark.parametrize(
    ("marks", "given", "refused", "told"),
    [
        (("a", "b"), True, 0, 0),
        (("c", "b"), True, 1, 0),
        (("a", "c"), True, 1, 0),
        (("c", "b"), False, 0, 1),
        (("", ""), True, 0, 0),
        ((), True, 0, 0),
    ],
)
def test_a_folder_that_is_not_the_same_on_all_machines_is_refused_where_it_was_asked_for(
    marks: tuple[str, ...], given: bool, refused: int, told: int
) -> None:
    found = agree("n0", SHARES, "n1", dataclasses.replace(SHARES, jit_marks=marks, jit_given=given))
    assert (len(found.refused), len(found.told)) == (refused, told)
    for text in (*found.refused, *found.told):
        assert "on n0 and " in text
        assert "are not the same folder: neither sees what the other writes" in text


IMPORTS = dataclasses.replace(ONE, imported=("model.py", "train.py"))


def test_files_that_the_script_does_not_import_and_patch_versions_are_told_alone() -> None:
    found = with_other(sources={"train.py": "1", "model.py": "3", "notes.py": "4"}, python="3.11.8")
    assert found.refused == ()
    assert found.told[0].startswith(
        "beside the script model.py is not the same on n0 and n1 and notes.py is not on n0: "
    )
    assert "3.11.7" in found.told[1]


@pytest.mark.parametrize(
    ("sources", "text"),
    [
        ({"train.py": "1", "model.py": "3"}, "model.py is not the same on n0 and n1"),
        ({"train.py": "1"}, "model.py is not on n1"),
    ],
)
def test_a_file_that_the_script_imports_and_that_differs_keeps_machines_apart_and_the_job_begins(
    sources: dict[str, str], text: str
) -> None:
    imported = tuple(sorted(sources))
    for cut in (False, True):
        other = dataclasses.replace(IMPORTS, sources=sources, imported=imported, sources_cut=cut)
        found = agree("n0", IMPORTS, "n1", other)
        assert found.refused == ()
        assert found.kept_apart.startswith(
            f"of what the script imports from its folder {text}: a lost rank is taken over "
        )
        assert imports_key(IMPORTS) != imports_key(other)
    turned = agree("n0", other, "n1", IMPORTS).kept_apart
    assert text.replace("not on n1", "not on n0") in turned


def test_only_what_the_script_imports_and_what_is_known_keeps_machines_apart() -> None:
    notes = dataclasses.replace(IMPORTS, sources={**IMPORTS.sources, "notes.py": "9"}, torch="9", script="/other")
    assert imports_key(notes) == imports_key(IMPORTS) != ""
    assert imports_key(Program()) == ""


def test_a_file_that_cannot_be_read_is_not_compared() -> None:
    other = dataclasses.replace(IMPORTS, sources={"train.py": "1", "model.py": ""})
    assert agree("n0", IMPORTS, "n1", other) == ProgramAgreement()


def test_a_folder_that_is_too_large_to_be_compared_is_told() -> None:
    large = dataclasses.replace(IMPORTS, sources_cut=True)
    found = agree("n0", dataclasses.replace(IMPORTS, sources={**IMPORTS.sources, "notes.py": "1"}), "n1", large)
    assert found.refused == ()
    (told,) = found.told
    assert told.startswith("the script's folder on n1 has too many Python files to be compared")


def test_many_files_that_differ_are_counted() -> None:
    one = dataclasses.replace(ONE, sources={f"{n}.py": "1" for n in range(9)})
    other = dataclasses.replace(ONE, sources={f"{n}.py": "2" for n in range(9)})
    assert (
        agree("n0", one, "n1", other).told[0].startswith("beside the script 0.py, 1.py, 2.py, 6 more are not the same")
    )
