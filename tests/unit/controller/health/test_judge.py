from __future__ import annotations

from torchrelay.controller.health.judge import HealthJudge
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.health.classify import DeviceVerdict
from torchrelay.protocol.health.history import SeenEvidence
from torchrelay.protocol.health.policy import HealthPolicy, Limits
from torchrelay.protocol.health.policy_file import default_policy


def judge() -> HealthJudge:
    return HealthJudge(default_policy())


def see(
    judge: HealthJudge, kind: str, at_s: float, code: int = 0, value: float = 1.0, device: str = "GPU-a"
) -> DeviceVerdict | None:
    return judge.see(SeenEvidence(kind, at_s, "n0", device, "", code, value), at_s)


def test_a_verdict_by_time_comes_once_when_it_is_due() -> None:
    j = judge()
    assert see(j, k.LINK_DOWN, 10.0) is None
    assert j.is_waiting
    assert j.tick(12.9) == []
    (verdict,) = j.tick(13.0)
    assert (verdict.action, verdict.rule) == (k.REPLACE, "link-dead")
    assert not j.is_waiting
    assert j.tick(20.0) == []


def test_a_level_that_is_over_leads_to_nothing() -> None:
    j = judge()
    see(j, k.LINK_DOWN, 10.0)
    see(j, k.LINK_DOWN, 11.0, value=0.0)
    assert j.tick(14.0) == []


def test_a_second_episode_is_told_again() -> None:
    j = judge()
    see(j, k.LINK_DOWN, 10.0)
    assert len(j.tick(13.0)) == 1
    see(j, k.LINK_DOWN, 20.0, value=0.0)
    see(j, k.LINK_DOWN, 30.0)
    assert len(j.tick(33.0)) == 1


def test_what_is_only_watched_is_told_once_a_minute() -> None:
    j = judge()
    told = [see(j, k.XID, t, code=8, device=f"GPU-{t:g}") is not None for t in (1.0, 2.0)]
    assert told == [True, True], "another device"
    times = [see(j, k.HW_SLOWDOWN, t) is not None for t in (0.0, 200.0, 210.0, 261.0)]
    assert times == [True, True, False, True]


def test_healthy_counters_are_not_worth_a_word() -> None:
    j = judge()
    assert see(j, k.ECC_CORRECTED, 1.0) is None
    assert see(j, k.XID, 1.0, code=43) is not None, "an XID is, though nothing is done"


def test_stragglers_have_a_cooldown_for_the_whole_job() -> None:
    j = judge()
    for device, at_s in (("GPU-a", 0.0), ("GPU-b", 100.0), ("GPU-c", 700.0)):
        see(j, k.STRAGGLER, at_s, value=3.0, device=device)
    first = j.tick(30.0)
    assert [v.seen.device for v in first] == ["GPU-a"]
    see(j, k.STRAGGLER, 130.0, value=2.0, device="GPU-b")
    assert j.tick(140.0) == []
    assert [v.seen.device for v in j.tick(731.0)] == ["GPU-b"]


def test_a_job_has_so_many_automatic_migrations_in_an_hour() -> None:
    j = HealthJudge(HealthPolicy(limits=Limits(storm_migrations=2, storm_s=3600.0)))
    assert [j.storm(t) == "" for t in (0.0, 10.0, 20.0)] == [True, True, False]
    assert "a person has to look" in j.storm(30.0)
    assert j.storm(3601.0) == ""


def test_a_failure_just_after_evidence_against_the_device_is_the_devices() -> None:
    j = judge()
    see(j, k.XID, 100.0, code=48)
    assert "XID 48" in j.blamed("n0", ["GPU-a"], 110.0)
    assert j.blamed("n0", ["GPU-b"], 110.0) == ""
    assert j.blamed("n0", ["GPU-a"], 131.0) == ""
    see(j, k.XID, 200.0, code=43, device="GPU-c")
    assert j.blamed("n0", ["GPU-c"], 201.0) == "", "43 blames no device"
