from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from torchrelay.shim.observe.rounding import Rounding, note

DETERMINISTIC = Rounding(True, False, False, False, ":4096:8")


def test_a_deterministic_job_is_told_that_its_runs_round_alike() -> None:
    told = note(DETERMINISTIC)
    assert "deterministic by its settings (torch.use_deterministic_algorithms" in told
    assert "not deterministic" not in told
    assert note(replace(DETERMINISTIC, workspace=None)) == told, "AMD has no such setting"


@pytest.mark.parametrize(
    ("rounding", "opens"),
    [
        (
            replace(DETERMINISTIC, deterministic=False),
            "torch.use_deterministic_algorithms(True) is not called; torch.backends.cudnn",
        ),
        (replace(DETERMINISTIC, deterministic=False, cudnn_deterministic=True), "is not called)"),
        (replace(DETERMINISTIC, warns_only=True), "warn_only=True"),
        (replace(DETERMINISTIC, cudnn_measures=True), "torch.backends.cudnn.benchmark is True"),
        (replace(DETERMINISTIC, workspace=""), "CUBLAS_WORKSPACE_CONFIG is not set (:4096:8 or :16:8 repeat)"),
        (replace(DETERMINISTIC, workspace=":8:8"), "CUBLAS_WORKSPACE_CONFIG is :8:8"),
    ],
)
def test_each_setting_that_leaves_rounding_open_is_named(rounding: Rounding, opens: str) -> None:
    told = note(rounding)
    assert told.startswith("rounding on the device: not deterministic by its settings (")
    assert opens in told
    assert "The job is protected all the same" in told


def test_the_settings_are_those_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    before = Rounding.here()
    assert (before.cudnn_measures, before.workspace) == (True, ":16:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert (Rounding.here().deterministic, Rounding.here().warns_only) == (True, True)
    finally:
        torch.use_deterministic_algorithms(before.deterministic, warn_only=before.warns_only)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert Rounding.here().workspace is None
