"""The short form of `make attack`: strangers, absurd messages in states of a migration, floods, and a job on this machine."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import tempfile
import typing
from pathlib import Path

import pytest
from attack.cluster import SHORT, STATES, attack_cluster
from attack.draw import Draw, Known
from attack.machine import attack_machine
from attack.orders import attack_orders
from attack.side_ports import attack_sides
from attack.tally import Tally
from support.cells import only_in_long

from torchrelay.protocol import messages as msg
from torchrelay.protocol import relay_pb2
from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.transport import wire
from torchrelay.protocol.transport.convert import wrap
from torchrelay.protocol.transport.incoming import received

pytestmark = pytest.mark.core

SEED = int(os.environ.get("ATTACK_SEED", "1"))
UNIONS = ("FromAgent", "ToAgent", "ShimReport", "ShimOrder")


@pytest.mark.parametrize("union", UNIONS)
def test_every_message_is_drawn_and_what_is_drawn_is_read_or_refused_in_words(union: str) -> None:
    draw, known = Draw(f"{SEED}/{union}"), Known()
    kinds: tuple[type, ...] = typing.get_args(getattr(msg, union))
    read = dict.fromkeys(kinds, 0)
    for kind in kinds * 60:
        message = draw.message(kind, known)
        try:
            assert dataclasses.is_dataclass(received(wrap(getattr(relay_pb2, union), message)))
            read[kind] += 1
        except FrameError:
            pass
    assert all(read.values()), read
    assert sum(read.values()) < 60 * len(kinds)


@pytest.mark.parametrize("kinds", [wire.REPORTS, wire.ORDERS], ids=["reports", "orders"])
def test_frames_that_are_damaged_are_read_or_refused_in_words(kinds: dict[str, type]) -> None:
    draw, known, refused = Draw(f"{SEED}/frames"), Known(), 0
    for kind in list(kinds.values()) * 60:
        try:
            data = draw.damaged(wire.encode(draw.message(kind, known))[wire.HEAD_BYTES :])
            wire.decode(data, kinds)
        except FrameError:
            refused += 1
    assert refused > 60


def test_a_seed_draws_the_same() -> None:
    drawn = [[str(draw.from_agent(Known())) for _ in range(300)] for draw in (Draw(3), Draw(3), Draw(4))]
    assert drawn[0] == drawn[1] != drawn[2]


def test_every_state_is_one_that_an_order_leads_to() -> None:
    orders = {kind.__name__ for union in ("ToAgent", "ShimOrder") for kind in typing.get_args(getattr(msg, union))}
    assert {state for states in STATES.values() for state in states} <= orders


@pytest.mark.timeout(400)
def test_the_controller_of_a_cluster_lives_while_one_job_moves_and_a_real_one_ends_bitwise(tmp_path: Path) -> None:
    print(f"ATTACK_SEED={SEED}", flush=True)
    tally = Tally()
    asyncio.run(attack_cluster(tmp_path, SHORT, SEED, tally))
    assert tally.wrong == [], tally.told()


@pytest.mark.timeout(200)
def test_webhook_metrics_and_dashboard_go_on_to_answer_and_hold_nothing_afterwards(tmp_path: Path) -> None:
    tally = Tally()
    asyncio.run(attack_sides(tmp_path, SHORT, SEED, tally))
    assert tally.wrong == [], tally.told()


@pytest.mark.timeout(200)
def test_an_agent_obeys_its_controller_alone_and_lives_whatever_that_says() -> None:
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="agent-") as folder:  # short, for its sockets' paths
        asyncio.run(attack_orders(Path(folder), 5, SEED, tally))
    assert tally.wrong == [], tally.told()


@only_in_long
@pytest.mark.timeout(400)
def test_a_job_on_this_machine_ends_as_the_undisturbed_one(tmp_path: Path) -> None:
    tally = Tally()
    attack_machine(tmp_path, 2, SEED, tally)
    assert tally.wrong == [], tally.told()
