from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from torchrelay.protocol import events
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.messages import JobEvent
from torchrelay.protocol.words.phases import DOWNTIME_ROWS

PAGE = Path(__file__).parents[3] / "docs" / "events.md"
VALUES: dict[str, Any] = {
    "bool": True,
    "int": 3,
    "float": 0.5,
    "str": "x",
    "tuple[str, ...]": ("a", "b"),
    "tuple[int, ...]": (1, 2),
    "tuple[dict[str, Any], ...]": ({"kind": "iterator"},),
    "dict[str, Any]": {"level": "partly"},
    "dict[str, float]": {"detect": 0.5},
    "dict[str, str]": {"n0": "x"},
}


def example(cls: Any) -> events.Occurrence:
    made: events.Occurrence = cls(**{f.name: VALUES[str(f.type)] for f in dataclasses.fields(cls)})
    return made


@pytest.mark.parametrize("name", events.CLASSES)
def test_an_event_survives_the_way_to_the_watcher(name: str) -> None:
    occurrence = example(events.CLASSES[name])
    event = events.to_job_event(occurrence, 12.5)
    assert (event.name, event.time_s) == (name, 12.5)
    assert isinstance(json.loads(event.fields_json), dict)
    assert events.from_job_event(event) == occurrence


@pytest.mark.parametrize(
    "event", [JobEvent(0.0, "no_such_event", "{}"), JobEvent(0.0, "log", "{"), JobEvent(0.0, "log", '{"level": "x"}')]
)
def test_what_is_no_event_is_refused(event: JobEvent) -> None:
    with pytest.raises(FrameError, match="not an event of this version"):
        events.from_job_event(event)


def documented() -> dict[str, list[str]]:
    page = PAGE.read_text(encoding="utf-8")
    sections = re.split(r"^## `(\w+)`$", page, flags=re.MULTILINE)[1:]
    return {
        name: re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)
        for name, text in zip(sections[::2], sections[1::2], strict=True)
    }


def test_the_page_documents_every_event_with_every_field() -> None:
    assert documented() == {name: [f.name for f in dataclasses.fields(cls)] for name, cls in events.CLASSES.items()}


def test_the_page_names_every_row_of_the_downtime() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [row for row in DOWNTIME_ROWS if f"`{row}`" not in page] == []
