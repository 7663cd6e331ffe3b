"""The imitated device: what is queued, what fails, what repeats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from imitated_gpu import ranks
from imitated_gpu.faults import Fault, Orders


def one_rank(action: str, **environment: str) -> dict[str, Any]:
    return ranks.run("one_rank", 1, ACTION=action, **environment)[0]


def test_the_host_runs_ahead_of_the_device_over_whole_steps() -> None:
    facts = one_rank("run_ahead")
    assert facts["is_ahead"]
    assert facts["host_waits"] == facts["waited_for"] == 0
    assert facts["queued"] > 50
    assert len(set(facts["losses"])) == 3


def test_pinned_memory_is_not_reused_before_it_was_copied() -> None:
    assert one_rank("pinned_memory")["copied"] == [[number] * 4 for number in range(4)]


def test_sleep_keeps_the_stream_busy() -> None:
    assert one_rank("sleep")["took_ms"] >= 200


def test_an_error_in_a_queued_operator_is_a_device_side_assert() -> None:
    assert "device-side assert" in one_rank("assertion_on_device")["error"]


def test_a_kernel_without_a_cpu_operator_raises_and_is_counted() -> None:
    facts = one_rank("missing_kernel")
    assert "not supported" in facts["error"]
    assert facts["skipped"] == 1


def test_a_sticky_error_fails_every_call_from_then_on(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    facts = one_rank("device_error", **orders.environment())
    assert len(facts["errors"]) == 3
    assert all("illegal memory access" in error for error in facts["errors"])
    assert len(orders.fired(Fault.DEVICE_ERROR)) == 1


def test_a_saved_state_of_random_numbers_repeats_them() -> None:
    facts = one_rank("random_numbers")
    assert facts["repeats"]
    assert facts["differs"]
    assert 400 < facts["dropped"] < 600


def test_nothing_is_left_of_communicators_that_ended() -> None:
    facts = one_rank("many_communicators")
    assert facts == dict.fromkeys(facts, 0)


def test_making_a_communicator_can_be_slowed_down(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    orders.order(Fault.SLOW_INIT, seconds=2.5)
    assert one_rank("slow_init", **orders.environment())["took_s"] >= 2.5
    assert [firing.fault for firing in orders.fired()] == [Fault.SLOW_INIT]


def test_a_live_communicator_can_fail(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    facts = one_rank("async_error", TORCH_NCCL_ASYNC_ERROR_HANDLING="0", **orders.environment())
    assert facts["is_ahead"], "the collective was unfinished"
    assert [firing.fault for firing in orders.fired()] == [Fault.ASYNC_ERROR]


def test_an_abort_can_be_stuck(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    assert one_rank("stuck_abort", **orders.environment())["is_stuck"]
    assert [firing.fault for firing in orders.fired()] == [Fault.STUCK_ABORT]


def test_without_an_order_nothing_happens(tmp_path: Path) -> None:
    orders = Orders(tmp_path)
    orders.order(Fault.SLOW_INIT, seconds=600)
    orders.withdraw(Fault.SLOW_INIT)
    assert one_rank("slow_init", **orders.environment())["took_s"] < 100
    assert orders.fired() == []
