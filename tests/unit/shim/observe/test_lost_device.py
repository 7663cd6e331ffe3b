"""Whether a device has failed for good, and what becomes of the process then."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchrelay.protocol.logs.log_lines import LogLines, LogPart
from torchrelay.protocol.messages import Unfit
from torchrelay.shim.observe import lost_device

ERROR = "CUDA error: device-side assert triggered\nFor debugging consider"
REASON = "cuda:1 cannot be used any more: CUDA error: device-side assert triggered"


class Stream:
    def __init__(self, errors: list[str]) -> None:
        self.errors = errors

    def query(self) -> bool:
        if self.errors:
            raise RuntimeError(self.errors.pop(0))
        return True


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the device answers, one after the other."""
    answers: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream(answers))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    return answers


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: found.append((pid, number)))
    return found


def engine_of(told: list[Any], commit: object) -> Any:
    link = SimpleNamespace(send=told.append)
    return SimpleNamespace(commit=commit, way_in=None, shadow=None, link=link, log=LogLines(LogPart.SHIM))


def test_a_sticky_error_is_said_with_the_device(errors: list[str]) -> None:
    errors += [ERROR] * 2
    assert lost_device.failure() == REASON


def test_an_error_that_is_said_once_is_none_of_the_device(errors: list[str]) -> None:
    errors.append("CUDA error: invalid argument")
    assert lost_device.failure() == ""


def test_a_stream_that_is_being_captured_is_not_asked(errors: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    errors += [ERROR] * 2
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert lost_device.failure() == ""


def test_the_process_says_why_and_ends_itself(
    errors: list[str], told: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    errors += [ERROR] * 2
    lost_device.end_if_lost(engine_of(told, object()), ValueError("what the script made of it"))
    assert told == [Unfit(REASON, by_script=True), (os.getpid(), signal.SIGKILL)]
    assert "what the script made of it" in capsys.readouterr().err


def test_before_the_first_boundary_the_failure_is_the_scripts(errors: list[str], told: list[Any]) -> None:
    errors += [ERROR] * 2
    lost_device.end_if_lost(engine_of(told, None), RuntimeError(ERROR))
    assert told == []


def test_other_failures_are_not_the_devices(errors: list[str], told: list[Any]) -> None:
    lost_device.end_if_lost(engine_of(told, object()), RuntimeError("out of memory"))
    assert told == []
