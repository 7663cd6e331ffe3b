"""What is kept of a job's events, and how far somebody has been told of them."""

from __future__ import annotations

from torchrelay.controller.serving.event_log import FIRST_EVENTS_KEPT, LATEST_EVENTS_KEPT, EventLog
from torchrelay.protocol.messages import JobEvent


def filled(number: int) -> EventLog:
    log = EventLog()
    for n in range(number):
        log.add(JobEvent(float(n), "log", "{}"))
    return log


def told(log: EventLog, most: int) -> list[int]:
    """All that somebody is told who asks until there is no more."""
    found, place = [], 0
    while True:
        events, place = log.since(place, most)
        if not events:
            return found
        found += [int(event.time_s) for event in events]


def test_who_asks_is_told_everything_once_and_in_its_order_however_little_is_taken_at_once() -> None:
    number = FIRST_EVENTS_KEPT + 50
    for most in (1, 7, 1000):
        assert told(filled(number), most) == list(range(number))


def test_who_comes_late_hears_how_it_began_and_the_latest() -> None:
    number = FIRST_EVENTS_KEPT + LATEST_EVENTS_KEPT + 30
    log = filled(number)
    kept = [*range(FIRST_EVENTS_KEPT), *range(number - LATEST_EVENTS_KEPT, number)]
    assert [int(event.time_s) for event in log] == kept
    assert told(log, 100) == kept


def test_who_is_too_slow_goes_on_with_what_is_kept() -> None:
    log = filled(FIRST_EVENTS_KEPT + 10)
    _, place = log.since(FIRST_EVENTS_KEPT, 100)
    for n in range(LATEST_EVENTS_KEPT + 5):
        log.add(JobEvent(1000.0 + n, "log", "{}"))
    events, place = log.since(place, 3)
    assert [event.time_s for event in events] == [1005.0, 1006.0, 1007.0]
    assert log.since(log.count, 10) == ([], log.count)


def test_only_the_latest_progress_is_kept() -> None:
    log = EventLog()
    for n in range(3):
        log.add(JobEvent(float(n), "progress", "{}"))
    assert (log.count, list(log), log.progress) == (0, [], JobEvent(2.0, "progress", "{}"))
