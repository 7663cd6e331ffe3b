"""The soak, for a short while: what it draws, what it calls growth, and a job that it strikes."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from soak.draw import KILL, NODE, PLANNED, STOP, Fault, Struck, draw, why_not_now
from soak.held import LEAST_LOOKS, SETTLED_AFTER, Held, Look
from soak.job import ONE_MACHINE, soak
from support.cells import only_in_long
from support.footprint import Footprint

SECONDS = 20.0
SEED = int(os.environ.get("SOAK_SEED", "1"))


def test_a_seed_draws_the_same_faults_of_every_kind_at_every_place() -> None:
    drawn = [[draw(chance, 4, 2) for _ in range(200)] for chance in (random.Random(3), random.Random(3))]
    assert drawn[0] == drawn[1]
    assert {fault.kind for fault in drawn[0]} == {KILL, STOP, PLANNED, NODE}
    assert {fault.target for fault in drawn[0] if fault.kind == KILL} == {0, 1, 2, 3}
    assert {fault.target for fault in drawn[0] if fault.kind == NODE} == {0, 1}
    assert not any(draw(random.Random(n), 4, 1).kind == NODE for n in range(200))


BOUNDARIES = (9, 9, 9, 10)


@pytest.mark.parametrize(
    ("target", "struck", "why"),
    [
        (0, (), ""),
        (0, (Struck(0, 8),), ""),
        (0, (Struck(0, 9),), "rank 0 was struck at this step already"),
        (1, (Struck(0, 9),), ""),
        (1, (Struck(0, 9), Struck(2, 10)), "2 ranks were struck at this step already"),
    ],
)
def test_a_job_may_lose_half_of_its_ranks_at_a_step_and_none_of_them_twice(
    target: int, struck: tuple[Struck, ...], why: str
) -> None:
    assert why_not_now(Fault(KILL, target, 3.0), True, BOUNDARIES, False, struck) == why


def test_a_job_that_promises_nothing_is_not_struck_and_a_machine_is_only_lost_when_the_job_is_whole() -> None:
    assert why_not_now(Fault(KILL, 0, 3.0), False, BOUNDARIES, True, ())
    assert why_not_now(Fault(NODE, 0, 3.0), True, BOUNDARIES, False, ())
    assert not why_not_now(Fault(NODE, 0, 3.0), True, BOUNDARIES, True, ())


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


def test_what_is_left_in_the_temporary_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "left").touch()
    assert Held(tmp_path).leaks() == [f"{tmp_path / 'left'} is left"]


@only_in_long
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_job_that_is_struck_for_a_while_ends_as_the_undisturbed_one_and_leaves_nothing(tmp_path: Path) -> None:
    print(f"SOAK_SEED={SEED}", flush=True)
    ended = soak(tmp_path, ONE_MACHINE, SECONDS, SEED)
    assert ended.good, ended.told()
    assert ended.became["migration_finished"] >= 1, ended.told()
