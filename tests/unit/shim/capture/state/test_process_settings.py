"""Settings of the process: what training has changed of them, and how that comes into another process."""

from __future__ import annotations

import decimal
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
from support.host_state import differences, take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.adapters.cpython import environment
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import undo
from torchrelay.shim.capture.records.encode import decode, encode
from torchrelay.shim.capture.state.process_settings import ProcessSettings


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEVEL", "1")
    monkeypatch.delenv("EXTRA", raising=False)
    before = ProcessSettings()
    yield
    before.put({})


def train(folder: Path) -> None:
    """Change some of everything."""
    folder.mkdir()
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.set_grad_enabled(False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_flush_denormal(True)
    torch.autograd.set_detect_anomaly(True, False)
    numpy.seterr(over="raise")
    os.chdir(folder)
    decimal.getcontext().prec = 4
    logging.disable(logging.INFO)
    os.environ["LEVEL"] = "2"
    os.environ["EXTRA"] = "on"


def test_what_set_up_has_set_is_no_change() -> None:
    torch.set_default_dtype(torch.float64)
    settings = ProcessSettings()
    assert settings.changed() == {}
    os.environ["LEVEL"] = "5"
    settings.set_up_goes_on()
    assert settings.changed() == {}


def test_what_training_changes_is_put_in_another_process(tmp_path: Path) -> None:
    lost = ProcessSettings()
    new = ProcessSettings()
    train(tmp_path / "a")
    changed = lost.changed()
    assert changed["default dtype"] is torch.float64
    assert changed["working folder"] == str(tmp_path / "a")
    assert changed["environment variable LEVEL"] == "2"
    assert "number of threads" not in changed
    lost.put({})
    assert lost.changed() == {}
    assert (torch.get_default_dtype(), os.environ["LEVEL"], "EXTRA" in os.environ) == (torch.float32, "1", False)
    new.put(changed)
    assert new.changed() == changed
    assert torch.get_default_device() == torch.device("meta")
    assert torch.is_deterministic_algorithms_warn_only_enabled()
    assert not torch.is_grad_enabled()
    assert 5e-324 * float("1") == 0.0
    assert numpy.geterr()["over"] == "raise"
    assert decimal.Decimal(1) / 3 == decimal.Decimal("0.3333")
    assert logging.root.manager.disable == logging.INFO


def test_a_variable_that_training_has_removed_is_removed() -> None:
    settings = ProcessSettings()
    del os.environ["LEVEL"]
    changed = settings.changed()
    assert changed == {"environment variable LEVEL": None}
    os.environ["LEVEL"] = "1"
    settings.put(changed)
    assert "LEVEL" not in os.environ
    settings.put({})
    assert os.environ["LEVEL"] == "1"


def test_what_a_lost_rank_had_changed_does_not_become_set_ups() -> None:
    settings = ProcessSettings()
    settings.put({"default dtype": torch.float64, "environment variable EXTRA": "on"})
    os.environ["LEVEL"] = "3"  # on the way from an outer loop's head to the one where it enters
    settings.set_up_goes_on()
    assert settings.changed() == {"default dtype": torch.float64, "environment variable EXTRA": "on"}


def test_a_rank_that_goes_back_has_the_settings_of_its_boundary() -> None:
    state = take({})
    os.environ["LEVEL"] = "2"
    torch.set_grad_enabled(False)
    undo.undo(state)
    assert os.environ["LEVEL"] == "1"
    assert torch.is_grad_enabled()


def test_a_rank_that_has_other_settings_is_told_by_their_names() -> None:
    then = decode(encode(take({})))
    trees = ModuleTrees()
    torch.set_default_dtype(torch.float64)
    found = [str(difference) for difference in differences(then, decode(encode(take({}, trees))))]
    torch.set_default_dtype(torch.float32)
    assert found == ["settings of the process['default dtype'] was as set-up left it and is torch.float64"]


def test_a_folder_that_is_not_here_is_named(tmp_path: Path) -> None:
    gone = str(tmp_path / "gone")
    with pytest.raises(
        StateMismatchError, match=f"training works in the folder {gone}, which this process cannot enter"
    ):
        ProcessSettings().put({"working folder": gone})


def test_variables_are_told_without_the_dict_that_holds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os.environ, "_data", raising=False)
    monkeypatch.setattr(environment.os, "environ", {"LEVEL": "1"})
    assert environment.decoded(environment.variables()) == {"LEVEL": "1"}
