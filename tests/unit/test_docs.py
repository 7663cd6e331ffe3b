"""Docs name files and link to pages: each of them is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
TOUR = [DOCS / "architecture.md", *sorted((DOCS / "internals").glob("*.md"))]
PARTS = ("protocol", "dashboard", "shim", "agent", "controller", "webhook", "cli")


def anchors_of(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_links_only_to_what_is_there(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors_of(linked), target


def homes(name: str) -> list[Path]:
    """Where a file can be that the tour calls `name`: below a part, or below a folder of a part."""
    below = [ROOT / part / "torchrelay" for part in PARTS]
    below += [root / part for root, part in zip(below, PARTS)]
    return [root / name for root in below]


@pytest.mark.parametrize("page", TOUR, ids=lambda page: page.name)
def test_the_tour_names_only_files_that_are_there(page: Path) -> None:
    named = set(re.findall(r"`([\w/]+/[\w/]*\.(?:py|yaml|toml))`", page.read_text()))
    missing = {name for name in named if not any(home.exists() for home in homes(name)) and not (ROOT / name).exists()}
    assert missing == set()
    assert named, "the page names no file at all"
