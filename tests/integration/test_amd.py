"""amdsmi itself over a library in C. One process for each test: amdsmi loads its library at import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support import fake_amd

from torchrelay.protocol.health import kinds as k

GPU = "aaff74a1-0000-1000-8000-000000000001"
POLL_S = 0.05


class Probe:
    def __init__(self, env: dict[str, str]) -> None:
        command = [
            sys.executable,
            "-m",
            "torchrelay.agent.health.probe",
            "amd",
            json.dumps({"env": env, "poll_s": POLL_S}),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found

    def signals(self) -> list[tuple[str, float]]:
        while not (signals := self.line()["signals"]):
            pass
        return [(s["kind"], s["value"]) for s in signals]


def test_errors_pages_and_heat_are_told_and_a_lost_gpu_too(tmp_path: Path) -> None:
    env = fake_amd.build(tmp_path)
    with Probe(env) as probe:
        assert probe.line()["devices"] == [{"device": GPU, "pci": "0000:63:00.0", "name": "AMD GPU"}]
        assert probe.line() == {"signals": []}
        for state, expected in (
            ("uncorrected 1\n", (k.RAS_UNCORRECTED, 1.0)),
            ("uncorrected 1\ncorrected 7\n", (k.RAS_CORRECTED, 7.0)),
            ("uncorrected 1\ncorrected 7\npages 9\n", (k.BAD_PAGES, 0.9)),
            ("uncorrected 1\ncorrected 7\npages 9\ntemperature 98\n", (k.TEMPERATURE_MARGIN, 2.0)),
            ("lost 1\n", (k.GPU_LOST, 1.0)),
        ):
            new = tmp_path / "new"
            new.write_text(state)
            new.replace(tmp_path / "state")
            assert probe.signals() == [expected]


def test_without_the_library_there_is_no_such_device(tmp_path: Path) -> None:
    with Probe({"ROCM_PATH": str(tmp_path)}) as probe:
        assert "does not find its library" in probe.line()["absent"]
        assert probe.process.wait(30) == 0


def test_without_the_package_there_is_no_such_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchrelay.agent.health import amd
    from torchrelay.agent.health.source import AbsentError

    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(AbsentError, match=r"pip install torchrelay\[amd\]"):
        amd.open_source({})
