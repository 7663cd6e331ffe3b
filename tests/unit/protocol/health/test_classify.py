from __future__ import annotations

import dataclasses

import pytest

from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.health.classify import UNKNOWN, DeviceVerdict, classify
from torchrelay.protocol.health.history import REMEMBERED_S, History, SeenEvidence
from torchrelay.protocol.health.policy import HealthPolicy
from torchrelay.protocol.health.policy_file import default_policy

POLICY = default_policy()
GPU, OTHER = "GPU-a", "GPU-b"


class Case:
    """A history that grows; `see` gives the verdict about what was seen last."""

    def __init__(self) -> None:
        self.history, self.now_s, self.policy = History(), 1000.0, POLICY
        self.newest = SeenEvidence("", 0.0)

    def see(
        self,
        kind: str,
        code: int = 0,
        value: float = 1.0,
        device: str = GPU,
        detail: str = "",
        after_s: float = 0.0,
        **more: str,
    ) -> DeviceVerdict:
        self.now_s += after_s
        self.newest = SeenEvidence(
            kind, self.now_s, more.get("node", "n0"), device, more.get("worker", ""), code, value, detail
        )
        self.history.add(self.newest)
        return self.again()

    def again(self, after_s: float = 0.0) -> DeviceVerdict:
        self.now_s += after_s
        return classify(self.history, self.newest, self.policy, self.now_s)

    def xid(self, code: int, **more: object) -> DeviceVerdict:
        return self.see(k.XID, code, **more)  # type: ignore[arg-type]  # of any of its fields


@pytest.mark.parametrize("code", [79, 48, 95, 119, 120, 62, 64, 74, 140, 143, 46, 110])
def test_a_fatal_xid_replaces_now_and_quarantines_the_device(code: int) -> None:
    verdict = Case().xid(code)
    assert (verdict.action, verdict.quarantine) == (k.REPLACE, k.DEVICE)
    assert f"XID {code} on {GPU}" in verdict.reason


def test_a_contained_memory_error_costs_the_one_rank_and_no_device() -> None:
    verdict = Case().xid(94)
    assert (verdict.action, verdict.quarantine) == (k.REPLACE, k.NOBODY)


@pytest.mark.parametrize(("kind", "code"), [(k.XID, 63), (k.REMAP_PENDING, 0), (k.RETIRED_PENDING, 0)])
def test_memory_that_waits_for_a_reset_asks_for_a_planned_move(kind: str, code: int) -> None:
    assert Case().see(kind, code).action == k.MIGRATE


@pytest.mark.parametrize("code", [43, 45])
def test_a_secondary_error_alone_does_nothing(code: int) -> None:
    verdict = Case().xid(code)
    assert (verdict.action, verdict.quarantine) == (k.IGNORE, k.NOBODY)


@pytest.mark.parametrize("code", [43, 45])
def test_a_secondary_error_names_its_cause_in_the_same_burst(code: int) -> None:
    case = Case()
    case.xid(79, device=OTHER)
    verdict = case.xid(code, after_s=0.4)
    assert verdict.action == k.IGNORE
    assert f"follows from XID 79 on {OTHER} 0.4 s before" in verdict.reason


def test_a_secondary_error_is_no_cause_of_another() -> None:
    case = Case()
    case.xid(43)
    assert "follows from" not in case.xid(45, after_s=0.1).reason


@pytest.mark.parametrize(("after_s", "node"), [(5.1, "n0"), (0.1, "n1")])
def test_what_is_later_or_on_another_node_is_no_burst(after_s: float, node: str) -> None:
    case = Case()
    case.xid(79, device=OTHER)
    assert "follows from" not in case.xid(45, after_s=after_s, node=node).reason


def test_a_repeated_fault_of_one_gpu_is_the_gpus_and_of_two_the_programs() -> None:
    case = Case()
    assert case.xid(31).action == k.WATCH
    assert case.xid(31, after_s=3600.0).action == k.MIGRATE
    verdict = case.xid(31, device=OTHER, after_s=500.0)
    assert verdict.action == k.STOP
    assert GPU in verdict.reason
    assert case.xid(31, device="GPU-c", after_s=601.0).action == k.WATCH


def line_74(*registers: int, link: int = 3) -> str:
    return f"NVLink: fatal error detected on link {link}({', '.join(map(hex, registers))})"


@pytest.mark.parametrize(
    ("registers", "action"),
    [
        ((1 << 0, 0, 0, 0, 0, 0, 0), k.IGNORE),
        ((1 << 23, 0, 0, 0, 0, 0, 0), k.IGNORE),
        ((0, 0, 0, 0, 1 << 20, 0, 0), k.IGNORE),
        ((1 << 16, 0, 0, 0, 0, 0, 0), k.REPLACE),
        ((1 << 22, 0, 0, 0, 0, 0, 0), k.REPLACE),
        ((0, 0, 1 << 13, 0, 0, 0, 0), k.REPLACE),
        ((1 << 16 | 1, 0, 0, 0, 0, 0, 0), k.REPLACE),
        ((1 << 4, 0, 0, 0, 0, 0, 0), k.WATCH),
        ((0, 0, 1 << 17, 0, 0, 0, 0), k.WATCH),
        ((0, 0, 0, 1 << 16, 0, 0, 0), k.MIGRATE),
        ((0, 1 << 16, 0, 0, 0, 0, 0), k.REPLACE),
    ],
)
def test_an_nvlink_error_is_judged_by_its_registers(registers: tuple[int, ...], action: str) -> None:
    assert Case().xid(74, detail=line_74(*registers)).action == action


def test_parity_errors_of_nvlink_count_by_link() -> None:
    case, parity = Case(), (1 << 4, 0, 0, 0, 0, 0, 0)
    actions = [case.xid(74, detail=line_74(*parity, link=link), after_s=60.0).action for link in (1, 2, 1, 2, 1)]
    assert actions == [k.WATCH, k.WATCH, k.WATCH, k.WATCH, k.REPLACE]


def test_a_sympathetic_nvlink_error_follows_from_the_first() -> None:
    case = Case()
    case.xid(79, device=OTHER)
    verdict = case.xid(74, detail=line_74(1 << 20, 0, 0, 0, 0, 0, 0), after_s=0.2)
    assert (verdict.action, verdict.quarantine) == (k.IGNORE, k.NOBODY)


@pytest.mark.parametrize(
    ("detail", "action"),
    [
        ("RLW_CTRL Nonfatal XC0 i0 Link 0 (0x1)", k.WATCH),
        ("RLW_CTRL Non-fatal XC0", k.WATCH),
        ("RLW_CTRL Fatal XC1 i0 Link 0 (0x1)", k.REPLACE),
    ],
)
def test_nvlink_5_is_judged_by_the_word_of_its_line(detail: str, action: str) -> None:
    assert Case().xid(145, detail=detail).action == action


def test_where_sources_disagree_the_drivers_recovery_action_decides() -> None:
    case = Case()
    assert case.xid(109).action == k.REPLACE
    case = Case()
    case.see(k.RECOVERY_ACTION, 0)
    verdict = case.xid(109)
    assert (verdict.action, verdict.quarantine) == (k.WATCH, k.NOBODY)
    assert "gpud warns" in verdict.reason
    assert case.xid(79).action == k.REPLACE


@pytest.mark.parametrize(
    ("code", "action", "quarantine"),
    [
        (0, k.IGNORE, k.NOBODY),
        (1, k.REPLACE, k.DEVICE),
        (2, k.REPLACE, k.NODE),
        (3, k.MIGRATE, k.DEVICE),
        (4, k.MIGRATE, k.DEVICE),
    ],
)
def test_the_recovery_action_is_obeyed(code: int, action: str, quarantine: str) -> None:
    verdict = Case().see(k.RECOVERY_ACTION, code)
    assert (verdict.action, verdict.quarantine) == (action, quarantine)


def test_one_link_flap_is_ignored_and_two_within_five_minutes_move() -> None:
    case = Case()
    assert case.see(k.LINK_FLAP, device="mlx5_0/1").action == k.IGNORE
    assert case.see(k.LINK_FLAP, device="mlx5_1/1", after_s=1.0).action == k.IGNORE
    assert case.see(k.LINK_FLAP, device="mlx5_0/1", after_s=301.0).action == k.IGNORE
    assert case.see(k.LINK_FLAP, device="mlx5_0/1", after_s=299.0).action == k.MIGRATE


def test_a_port_that_stays_down_replaces_and_one_that_is_back_does_not() -> None:
    case = Case()
    down = case.see(k.LINK_DOWN, value=1.0, device="mlx5_0/1")
    assert (down.action, down.due_s) == (k.IGNORE, case.now_s + 3.0)
    assert case.again(after_s=2.9).action == k.IGNORE
    assert case.again(after_s=0.1).action == k.REPLACE
    assert case.see(k.LINK_DOWN, value=0.0, device="mlx5_0/1").action == k.IGNORE
    assert case.again(after_s=60.0).action == k.IGNORE


def test_a_disabled_port_replaces_at_once() -> None:
    assert Case().see(k.LINK_DOWN, value=2.0, device="mlx5_0/1").action == k.REPLACE


def test_symbol_errors_are_a_rate() -> None:
    case = Case()
    assert case.see("port-symbol_error", value=5.0).action == k.IGNORE
    assert case.see("port-symbol_error", value=11.0, after_s=60.0).action == k.WATCH
    assert case.see("port-symbol_error", value=104.0, after_s=3540.0).action == k.WATCH
    assert case.see("port-symbol_error", value=5.0, after_s=1.0).action == k.IGNORE, "the first five are an hour ago"
    assert case.see("port-symbol_error", value=1.0, after_s=1.0).action == k.MIGRATE


@pytest.mark.parametrize(
    "name", ["excessive_buffer_overrun_errors", "local_link_integrity_errors", "rnr_nak_retry_err"]
)
def test_some_port_counters_may_not_move_at_all(name: str) -> None:
    assert Case().see(f"port-{name}").action == k.MIGRATE


def test_one_corrected_error_is_nothing_and_many_are_watched() -> None:
    case = Case()
    assert case.see(k.ECC_CORRECTED, value=1.0).action == k.IGNORE
    assert case.see(k.ECC_CORRECTED, value=100.0, after_s=1.0).action == k.WATCH
    assert case.see(k.ECC_CORRECTED, value=1.0, after_s=61.0).action == k.IGNORE


@pytest.mark.parametrize("kind", [k.ECC_UNCORRECTED, k.RAS_UNCORRECTED, k.AMD_RESET, k.GPU_LOST, k.REMAP_FAILED])
def test_what_cannot_be_corrected_replaces(kind: str) -> None:
    verdict = Case().see(kind)
    assert (verdict.action, verdict.quarantine) == (k.REPLACE, k.DEVICE)


def test_nvlink_replays_in_more_than_half_of_30_seconds_move() -> None:
    case = Case()
    actions = [case.see(k.NVLINK_ERRORS, after_s=1.9).action for _ in range(30)]
    assert actions[:15] == [k.IGNORE] * 15
    assert actions[15] == k.MIGRATE
    sparse = Case()
    assert {sparse.see(k.NVLINK_ERRORS, after_s=2.1).action for _ in range(60)} == {k.IGNORE}


def test_heat_is_relative_and_has_hysteresis() -> None:
    case = Case()
    case.see(k.TEMPERATURE_MARGIN, value=9.0)
    assert case.again(after_s=29.0).action == k.IGNORE
    case.see(k.TEMPERATURE_MARGIN, value=13.0)
    first = case.again(after_s=1.0)
    assert first.action == k.WATCH
    case.see(k.TEMPERATURE_MARGIN, value=9.0, after_s=5.0)
    assert case.again().since_s == first.since_s, "between limit and clear it is the same episode"
    case.see(k.TEMPERATURE_MARGIN, value=15.0)
    case.see(k.TEMPERATURE_MARGIN, value=2.0, after_s=1.0)
    assert case.again(after_s=4.9).action == k.IGNORE
    assert case.again(after_s=0.1).action == k.MIGRATE


def test_a_straggler_has_to_stay_one() -> None:
    case = Case()
    verdict = case.see(k.STRAGGLER, value=3.0)
    assert (verdict.action, verdict.due_s) == (k.IGNORE, case.now_s + 30.0)
    assert case.again(after_s=29.9).action == k.IGNORE
    verdict = case.again(after_s=0.2)
    assert (verdict.action, verdict.cooldown_s) == (k.MIGRATE, 600.0)
    assert case.see(k.STRAGGLER, value=1.3).action == k.MIGRATE, "still above where it is over"
    assert case.see(k.STRAGGLER, value=1.1).action == k.IGNORE


def test_the_same_failure_at_the_same_step_twice_is_the_programs() -> None:
    case = Case()
    assert case.see(k.EXIT, device="", worker="rank 1", detail="SIGSEGV at step 20").action == k.WATCH
    assert case.see(k.EXIT, device="", worker="rank 1", detail="SIGSEGV at step 21").action == k.WATCH
    assert case.see(k.EXIT, device="", worker="rank 2", detail="SIGSEGV at step 20").action == k.WATCH
    assert case.see(k.EXIT, device="", worker="rank 1", detail="SIGSEGV at step 20").action == k.STOP


def test_memory_that_the_program_outgrew_stops_and_the_machines_replaces() -> None:
    assert Case().see(k.OOM_PROGRAM, device="", worker="n0.w1").action == k.STOP
    assert Case().see(k.OOM_NODE, device="", worker="n0.w1").action == k.REPLACE


def test_suspected_corruption_is_never_a_planned_move() -> None:
    assert Case().see(k.SDC, device="", worker="n0.w1").action == k.REPLACE


def test_a_hanging_driver_is_watched_and_then_acted_on() -> None:
    case = Case()
    assert case.see(k.DRIVER_HANG, value=5.0, device="").action == k.WATCH
    verdict = case.see(k.DRIVER_HANG, value=15.0, device="")
    assert (verdict.action, verdict.quarantine) == (k.MIGRATE, k.NODE)
    assert case.see(k.DRIVER_HANG, value=0.0, device="").action == k.IGNORE


def test_a_dead_source_is_told_and_is_no_health() -> None:
    verdict = Case().see(k.SOURCE_DEAD, device="", detail="NVIDIA: the library is gone")
    assert verdict.action == k.WATCH
    assert "the library is gone" in verdict.reason


def test_an_xid_that_the_table_lacks_is_watched() -> None:
    verdict = Case().xid(999)
    assert (verdict.action, verdict.rule) == (k.WATCH, UNKNOWN)


def test_what_only_explains_is_not_told_where_no_row_speaks_of_it() -> None:
    history = History()
    for kind, action in ((k.HOST_CPU, k.IGNORE), (k.REMAP_PENDING, k.WATCH)):
        seen = SeenEvidence(kind, 0.0, "n0", value=0.9)
        history.add(seen)
        assert classify(history, seen, HealthPolicy(), 0.0).action == action


def test_observe_says_what_it_would_do() -> None:
    case = Case()
    case.policy = dataclasses.replace(POLICY, observe=True)
    verdict = case.xid(79)
    assert (verdict.action, verdict.observe) == (k.REPLACE, True)


def test_what_is_older_than_a_day_is_forgotten() -> None:
    case = Case()
    case.xid(31)
    case.xid(8, after_s=10.0)
    case.xid(31, after_s=REMEMBERED_S - 5)
    assert [s.code for s in case.history.of(k.XID, "n0", GPU)] == [8, 31]


def test_a_cleared_device_starts_anew() -> None:
    case = Case()
    case.xid(31)
    case.history.forget("n0", GPU)
    assert case.xid(31, after_s=1.0).action == k.WATCH
