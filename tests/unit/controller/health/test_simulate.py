from __future__ import annotations

import dataclasses

import pytest

from torchrelay.controller.health import simulate
from torchrelay.protocol.health import kinds as k
from torchrelay.protocol.health.policy import HealthPolicy
from torchrelay.protocol.health.policy_file import default_policy


def test_healthy_noise_of_some_device_days_leads_to_nothing() -> None:
    assert simulate.false_alarms(2.0, 1) == []


@pytest.mark.parametrize("kind", [k.LINK_FLAP, k.ECC_CORRECTED, k.TEMPERATURE_MARGIN, k.NODE_CONDITION, k.HOST_CPU])
def test_a_policy_that_is_too_nervous_is_found_out(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    rules = []
    for rule in default_policy().rules:
        nervous = {"at_most": 12.0, "clear": 12.0, "for_s": 5.0} if kind == k.TEMPERATURE_MARGIN else {}
        rules.append(dataclasses.replace(rule, verdict=k.MIGRATE, **nervous) if rule.signal == kind else rule)  # type: ignore[arg-type]  # of any of its fields
    monkeypatch.setattr(simulate, "default_policy", lambda: HealthPolicy(tuple(rules)))
    assert simulate.false_alarms(2.0, 1)
