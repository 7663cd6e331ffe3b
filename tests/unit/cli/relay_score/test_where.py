from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from torchrelay.cli.relay_score import where as wheres
from torchrelay.cli.relay_score.command import RelayScoreOptions, relay_score
from torchrelay.cli.relay_score.entries import CorpusEntry
from torchrelay.cli.relay_score.where import ScoreBackend, Where, from_answer
from torchrelay.protocol.errors import UserError

TWO = Where(ScoreBackend.NCCL, ("imitated GPU", "imitated GPU"))


def answer(*names: str, nccl: bool = True) -> str:
    return "a warning of torch\n" + json.dumps(["2.13.0+cu130", nccl, names])


def test_gloo_is_on_the_cpu_and_nobody_is_asked() -> None:
    assert wheres.look(ScoreBackend.GLOO).variables() == {"CORPUS_BACKEND": "gloo", "CORPUS_DEVICE": "cpu"}
    assert Where().in_words() == "gloo on cpu"


def test_nccl_is_on_cuda_and_a_device_is_called_by_its_own_name() -> None:
    found = from_answer(ScoreBackend.NCCL, answer("imitated GPU", "imitated GPU"))
    assert found == TWO
    assert found.variables() == {"CORPUS_BACKEND": "nccl", "CORPUS_DEVICE": "cuda"}
    assert found.in_words() == "nccl on cuda (2 x imitated GPU)"


def test_a_torch_without_a_device_or_without_nccl_is_refused() -> None:
    with pytest.raises(UserError, match=r"--backend nccl: torch 2\.13\.0\+cu130 finds no CUDA device here"):
        from_answer(ScoreBackend.NCCL, answer())
    with pytest.raises(UserError, match="was built without NCCL"):
        from_answer(ScoreBackend.NCCL, answer("some GPU", nccl=False))


def test_without_a_device_nothing_is_started_and_nothing_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\necho '{answer().splitlines()[-1]}'\n")
    fake.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(fake))
    options = RelayScoreOptions((), (), (), (), 0, 1, False, tmp_path / "out", False, None, backend=ScoreBackend.NCCL)
    with pytest.raises(UserError, match="finds no CUDA device"):
        relay_score(options)
    assert not (tmp_path / "out").exists()


def test_an_entry_that_cannot_be_run_on_the_devices_says_why() -> None:
    plain = CorpusEntry("plain", "loops", "plain.py", steps=8, ranks=4)
    cpu_only = CorpusEntry("old", "loops", "old.py", steps=8, cpu_only="it reads memory of the host")
    framework = CorpusEntry("framework", "frameworks", "framework.py", steps=8, ranks=4, own_devices=True)
    assert [e.why_not_run(Where()) for e in (plain, cpu_only, framework)] == ["", "", ""]
    assert plain.why_not_run(TWO) == ""
    assert cpu_only.why_not_run(TWO) == "not on a device: it reads memory of the host"
    assert framework.why_not_run(TWO) == "needs 4 devices, one for each rank, of which there are 2"
    assert framework.why_not_run(Where(ScoreBackend.NCCL, ("GPU",) * 4)) == ""
