"""The soak, for a short while: what it draws, what it calls growth, what it tells, and a job that it strikes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from soak import draw as d
from soak.draw import Fault, Seen, Struck, draw, why_not_now
from soak.held import GROWTH_BYTES, LEAST_LOOKS, SETTLED_AFTER, Held, Look
from soak.job import soak
from soak.record import Row, Strike, merged, rows, table
from soak.shapes import LADDER, SPARES, Shape, shape
from support.cells import only_in_long
from support.footprint import HANDS_BACK, Footprint

SECONDS = 20.0
SEED = int(os.environ.get("SOAK_SEED", "1"))


def test_a_seed_draws_the_same_faults_of_every_kind_at_every_place() -> None:
    two = shape(2, LADDER, cuts=True)
    drawn = [[draw(chance, two.kinds, 4, 2) for _ in range(600)] for chance in (random.Random(3), random.Random(3))]
    assert drawn[0] == drawn[1]
    assert {fault.kind for fault in drawn[0]} == set(two.kinds)
    assert {fault.target for fault in drawn[0] if fault.kind == d.KILL} == {0, 1, 2, 3}
    assert {fault.target for fault in drawn[0] if fault.kind == d.NODE} == {0, 1}
    assert {fault.place for fault in drawn[0] if fault.kind in d.ORDERED} == set(d.PLACES)
    assert {fault.place for fault in drawn[0] if fault.kind not in d.ORDERED} == {""}


def test_machines_are_lost_where_there_are_two_and_cut_off_where_they_can_be() -> None:
    assert not {d.NODE, d.CUT} & set(shape(1, SPARES, cuts=True).kinds)
    assert d.NODE in shape(2, SPARES).kinds
    assert d.CUT not in shape(2, SPARES).kinds
    assert d.CUT in shape(2, SPARES, cuts=True).kinds
    assert d.AGENT in shape(1, LADDER).kinds, "all processes begin again then"
    assert d.AGENT not in shape(1, SPARES).kinds


SEEN = Seen(promised=True, whole=False, boundaries=(9, 9, 9, 10))


@pytest.mark.parametrize(
    ("kind", "target", "struck", "why"),
    [
        (d.KILL, 0, (), ""),
        (d.KILL, 0, (Struck(0, 8),), ""),
        (d.KILL, 0, (Struck(0, 9),), "rank 0 was struck at this step already"),
        (d.PAUSE, 1, (Struck(0, 9),), ""),
        (d.CONTROLLER, 0, (Struck(0, 9), Struck(2, 10)), ""),
        (d.KILL, 1, (Struck(0, 9),), ""),
        (d.KILL, 1, (Struck(0, 9), Struck(2, 10)), "2 ranks were struck at this step already"),
        (d.HALF, 1, (Struck(0, 9),), "1 ranks were struck at this step already"),
    ],
)
def test_a_job_may_lose_half_of_its_ranks_at_a_step_and_none_of_them_twice(
    kind: str, target: int, struck: tuple[Struck, ...], why: str
) -> None:
    assert why_not_now(Fault(kind, target, 3.0), SEEN, struck, {}, waits=True) == why


def test_where_it_waits_a_job_that_promises_nothing_is_not_struck_and_a_machine_is_only_lost_when_the_job_is_whole() -> (
    None
):
    kill, node, whole = Fault(d.KILL, 0, 3.0), Fault(d.NODE, 0, 3.0), replace(SEEN, whole=True)
    assert why_not_now(kill, replace(SEEN, promised=False), (), {}, waits=True)
    assert not why_not_now(kill, replace(SEEN, promised=False), (), {}, waits=False)
    for waits in (True, False):
        assert why_not_now(node, SEEN, (), {}, waits)
        assert not why_not_now(node, whole, (), {}, waits)


def test_a_job_is_not_struck_a_third_time_before_it_has_done_a_step_again() -> None:
    twice = replace(SEEN, since_progress=2)
    assert why_not_now(Fault(d.KILL, 0, 3.0), twice, (), {}, waits=False) == "2 strikes since a step was done"
    assert not why_not_now(Fault(d.FOLDER, 0, 3.0), twice, (), {}, waits=False)
    assert not why_not_now(Fault(d.KILL, 0, 3.0), replace(SEEN, since_progress=1), (), {}, waits=False)


def test_nobody_hangs_before_its_first_step() -> None:
    beginning = replace(SEEN, boundaries=(0, 1, 1, 1))
    assert why_not_now(Fault(d.STOP, 0, 3.0), beginning, (), {}, waits=False) == "not every rank has done a step"
    assert not why_not_now(Fault(d.KILL, 0, 3.0), beginning, (), {}, waits=False)
    assert not why_not_now(Fault(d.STOP, 0, 3.0), SEEN, (), {}, waits=False)


def test_spares_and_controllers_are_not_lost_more_often_than_new_ones_are_made() -> None:
    spare, controller = Fault(d.SPARE, 0, 3.0), Fault(d.CONTROLLER, 0, 3.0)
    assert not why_not_now(spare, SEEN, (), {d.SPARE: d.MOST_SPARES - 1}, waits=True)
    assert why_not_now(spare, SEEN, (), {d.SPARE: d.MOST_SPARES}, waits=True)
    assert why_not_now(spare, replace(SEEN, spares=0), (), {}, waits=True)
    assert not why_not_now(controller, SEEN, (), {}, waits=True)
    assert why_not_now(controller, replace(SEEN, led_s=3.0), (), {}, waits=True)


def event(name: str, time_s: float, **more: Any) -> dict[str, Any]:
    return {"name": name, "time_s": time_s, **more}


def finished(time_s: float, kind: str = "unplanned", outcome: str = "committed", steps: int = 1) -> dict[str, Any]:
    return event(
        "migration_finished", time_s, kind=kind, outcome=outcome, steps_redone=steps, downtime_s={"fence": 0.5}
    )


def test_each_strike_has_the_rungs_that_came_before_the_next_one_with_what_they_cost() -> None:
    strikes = [Strike(d.KILL, 0, 10.0, 3), Strike(d.PAUSE, 1, 20.0, 8), Strike(d.KILL, 1, 30.0, 9)]
    strikes.append(Strike(d.ALL, 0, 40.0, 12))
    told = [
        finished(11.0),
        event("process_respawned", 31.0),
        finished(35.0),
        event("job_restarted", 41.0, rung="script", steps=7),
        event("restart_done", 45.0, elapsed_s=4.0),
        finished(50.0),
    ]
    everything, kill, pause = rows(strikes, told)
    assert kill == Row(d.KILL, 2, Counter(spare=1, respawn=1), 2, 1.0)
    assert pause == Row(d.PAUSE, 1, Counter({"goes on": 1}), 0, 0.0)
    assert everything == Row(d.ALL, 1, Counter(script=1, spare=1), 8, 4.5)
    assert table([kill, pause]).splitlines()[1].split() == ["kill", "2", "2", "1.0", "s", "respawn", "1,", "spare", "1"]
    assert table([kill, pause]).splitlines()[-1].split() == ["all", "3", "2", "1.0", "s"]


def test_what_two_machines_tell_is_told_once_and_what_comes_again_later_twice() -> None:
    one = [finished(1.0), finished(20.0)]
    one.append(event("job_restarted", 30.0, restart=2, rung="script"))
    other = [finished(1.2), event("job_restarted", 30.1, restart=1, rung="script")]
    assert [e["time_s"] for e in merged([one, other])] == [1.0, 20.0, 30.0]


def seen(folder: Path, *looks: Footprint) -> Held:
    held = Held(folder)
    held.looks[("agent", 1)] = [Look(faults, look) for faults, look in enumerate(looks)]
    return held


@pytest.mark.parametrize(
    ("grown", "named"),
    [
        (lambda n: Footprint(1, 50 << 20, 40, 9), ""),
        (lambda n: Footprint(1, 50 << 20, 40 + n, 9), "agent (1) descriptors: 43 grew to 49"),
        (lambda n: Footprint(1, 50 << 20, 40, 9 + n), "agent (1) threads: 12 grew to 18"),
        (lambda n: Footprint(1, (50 + n) << 20, 40, 9), "agent (1) bytes: 55574528 grew to 61865984"),
        (lambda n: Footprint(1, 50 << 20, 40 + 20 * (n % 2), 9), ""),
        (lambda n: Footprint(1, (50 + min(n, SETTLED_AFTER)) << 20, 40, 9), ""),
    ],
)
def test_what_only_grows_is_a_leak_and_what_comes_and_goes_is_none(grown, named: str, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    leaks = seen(tmp_path, *map(grown, range(SETTLED_AFTER + 2 * LEAST_LOOKS))).leaks()
    assert [leak.partition(" (")[0] if not named else leak[: len(named)] for leak in leaks] == (
        [named] if named else []
    )


def test_a_single_look_at_a_part_that_was_about_to_be_made_is_no_leak(tmp_path: Path) -> None:
    looks = [Footprint(1, 50 << 20, 15, 5), *(Footprint(1, 50 << 20, 18, 10) for _ in range(20))]
    assert seen(tmp_path, *[looks[0]] * SETTLED_AFTER, *looks).leaks() == []


LETS_GO = """
import sys
sys.path.insert(0, {tests!r})
from support.footprint import footprint
import os
journal = bytes(700_000)
kept = []
def sent():
    journals = [bytearray(journal) for _ in range(12)]
    kept.append(bytearray(1000))  # lies behind them, so that their room is not the heap's end
before = footprint(os.getpid()).anonymous_bytes
sent()
print(footprint(os.getpid()).anonymous_bytes - before)
"""


def test_what_a_process_has_freed_is_not_seen_as_held() -> None:
    """Or the room of a journal that an agent has sent would be growth, as long as glibc keeps it."""
    script = LETS_GO.format(tests=str(Path(__file__).parents[2]))

    def held(**allocator: str) -> int:
        environment = {**os.environ, **allocator}
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    assert held(**HANDS_BACK) < GROWTH_BYTES
    assert held(MALLOC_MMAP_THRESHOLD_="33554432", MALLOC_TRIM_THRESHOLD_="1073741824") > 4 * GROWTH_BYTES


def test_what_is_left_in_the_temporary_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "left").touch()
    assert Held(tmp_path).leaks() == [f"{tmp_path / 'left'} is left"]


@only_in_long
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("mode", [SPARES, LADDER], ids=lambda mode: mode.name)
def test_a_job_that_is_struck_for_a_while_ends_as_the_undisturbed_one_and_leaves_nothing(
    mode: Any, tmp_path: Path
) -> None:
    print(f"SOAK_SEED={SEED}", flush=True)
    ended = soak(tmp_path, shape(1, mode), SECONDS, SEED)
    assert ended.good, ended.told()
    assert set(ended.rungs) & {"spare", "respawn", "jit-checkpoint", "earlier-checkpoint", "script"}, ended.told()


SHORT = replace(SPARES, kinds=(d.KILL, d.CRASH, d.PAUSE, d.PLANNED, d.CONTROLLER), alone=(d.DEVICE,))
SHORT_SEED = 171
"""Draws a rank that is killed, a controller that is, a device that is lost, and a move."""


@pytest.mark.core
@pytest.mark.timeout(400)
def test_a_job_that_four_faults_strike_ends_as_the_undisturbed_one_and_leaves_nothing(tmp_path: Path) -> None:
    ended = soak(tmp_path, Shape(1, 2, SHORT), 2 * SECONDS, SHORT_SEED, most=4)
    assert ended.good, ended.told()
    assert set(ended.struck) == {d.KILL, d.CONTROLLER, d.DEVICE, d.PLANNED}, ended.told()
    assert ended.events["quarantine_cleared"] >= 1, ended.told()
    assert ended.rungs["spare"] + ended.rungs["respawn"] >= 1, ended.told()
    assert ended.rungs["next controller"] == 1, ended.told()
