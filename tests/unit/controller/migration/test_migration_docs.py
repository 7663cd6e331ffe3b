from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from torchrelay.controller.migration.machine import arrows
from torchrelay.controller.migration.table import TABLE
from torchrelay.protocol.words.phases import Phase

SCRIPT = Path(__file__).parents[4] / "scripts" / "draw_protocol.py"
spec = importlib.util.spec_from_file_location("draw_protocol", SCRIPT)
assert spec is not None
assert spec.loader is not None
draw_protocol = importlib.util.module_from_spec(spec)
spec.loader.exec_module(draw_protocol)


@pytest.mark.parametrize("path", draw_protocol.PAGES, ids=lambda path: path.name)
def test_the_page_shows_the_table_as_it_is(path: Path) -> None:
    page = path.read_text(encoding="utf-8")
    assert draw_protocol.drawn(page, draw_protocol.PAGES[path]) == page, "run: python scripts/draw_protocol.py"


def test_a_changed_table_makes_the_page_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    path = draw_protocol.DOCS / "protocol.md"
    page = path.read_text(encoding="utf-8")
    fewer = {phase: row for phase, row in TABLE.items() if phase is not Phase.VERIFYING}
    monkeypatch.setattr(draw_protocol, "TABLE", fewer)
    assert draw_protocol.drawn(page, draw_protocol.PAGES[path]) != page


def test_every_phase_can_be_reached_and_left_and_ends_somewhere() -> None:
    reached, ends = {Phase.HEALTHY}, set()
    queue = [Phase.HEALTHY]
    while queue:
        for target in arrows(TABLE[queue.pop()]):
            if target not in reached:
                reached.add(target)
                queue.append(target)
    assert reached == set(Phase)
    ends = {phase for phase, row in TABLE.items() if not arrows(row)}
    assert ends == {Phase.ABANDONED}
