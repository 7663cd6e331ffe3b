"""What the reference says of names that people write is what the code has: no variable, exit code or annotation is left out."""

from __future__ import annotations

import re

import pytest
from support.repository_script import script

from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.annotations import PodAnnotations, read

ROOT = script("generated_part").ROOT
PARTS = ("agent", "cli", "controller", "dashboard", "protocol", "shim", "webhook")
NO_MEANING = {"TORCHRELAY_FAKE_NVML", "TORCHRELAY_MACHINE"}
"""Of a machine that is played."""


def page(name: str) -> str:
    return str((ROOT / "docs" / name).read_text("utf-8"))


def test_every_variable_that_the_code_reads_is_on_the_page_of_variables() -> None:
    found = set[str]()
    for part in PARTS:
        for file in (ROOT / part / "torchrelay" / part).rglob("*.py"):
            found |= set(re.findall(r'"(TORCHRELAY_[A-Z_]+)"', file.read_text("utf-8")))
    told = set(re.findall(r"`(TORCHRELAY_[A-Z_]+)`", page("reference/environment.md")))
    assert len(told) > 50
    assert found - told == NO_MEANING


def rows() -> dict[str, tuple[str, ...]]:
    """By annotation: value, default and meaning, as the page has them."""
    table = re.findall(r"^\| `torchrelay\.dev/([\w-]+)` \|(.*)\|$", page("kubernetes-install.md"), re.MULTILINE)
    return {name: tuple(cell.strip() for cell in cells.split("|")) for name, cells in table}


def test_the_table_of_annotations_has_all_that_people_may_write() -> None:
    assert {f"{kube.GROUP}/{name}" for name in rows()} == set(kube.USER_ANNOTATIONS)


@pytest.mark.parametrize("name", [n.partition("/")[2] for n in kube.USER_ANNOTATIONS])
def test_the_default_of_an_annotation_is_what_counts_without_it(name: str) -> None:
    default = rows()[name][1].strip("`")
    written = ",".join(kube.FALLBACKS) if default == "all" else default
    if written in ("", "see below"):
        return  # what has no default
    asked = {f"{kube.GROUP}/{name}": written}
    assert read(asked).copies_every == PodAnnotations().copies_every
    given, usual = vars(read(asked)), vars(PodAnnotations())
    assert {k: v for k, v in given.items() if k != "buddy_every"} == {
        k: v for k, v in usual.items() if k != "buddy_every"
    }
