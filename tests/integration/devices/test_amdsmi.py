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

pytestmark = pytest.mark.core

GPU = "aaff74a1-0000-1000-8000-000000000001"
POLL_S = 0.05


class Probe:
    def __init__(self, env: dict[str, str]) -> None:
        command = [
            sys.executable,
            "-m",
            "torchrelay.agent.health.probes.probe",
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


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return fake_amd.build(tmp_path_factory.mktemp("amd"))


def write(fake: dict[str, str], state: str) -> None:
    path = Path(fake["FAKE_AMD"])
    new = path.with_name("new")
    new.write_text(state)
    new.replace(path)


def test_errors_pages_and_heat_are_told_and_a_lost_gpu_too(fake: dict[str, str]) -> None:
    write(fake, "")
    with Probe(fake) as probe:
        assert probe.line()["devices"] == [{"device": GPU, "pci": "0000:63:00.0", "name": "AMD GPU"}]
        assert probe.line() == {"signals": []}
        for state, expected in (
            ("uncorrected 1\n", (k.RAS_UNCORRECTED, 1.0)),
            ("uncorrected 1\ncorrected 7\n", (k.RAS_CORRECTED, 7.0)),
            ("uncorrected 1\ncorrected 7\npages 9\n", (k.BAD_PAGES, 0.9)),
            ("uncorrected 1\ncorrected 7\npages 9\ntemperature 98\n", (k.TEMPERATURE_MARGIN, 2.0)),
            ("lost 1\n", (k.GPU_LOST, 1.0)),
        ):
            write(fake, state)
            assert probe.signals() == [expected]


@pytest.mark.parametrize(
    ("before", "after", "kind", "value"),
    [
        ("", "xgmi 1\n", k.XGMI_ERRORS, 1.0),
        ("", "width 8\n", k.PCIE_WIDTH, 0.5),
        ("", "replays 3\n", k.PCIE_REPLAYS, 3.0),
        ("throttled 10\n", "throttled 12\n", k.HW_SLOWDOWN, 1.0),
        ("old 1\n", "old 1\nthrottled 1\n", k.HW_SLOWDOWN, 1.0),
        ("", "resets 1\n", k.AMD_RESET, 1.0),
    ],
)
def test_links_throttling_and_resets_are_told(
    fake: dict[str, str], before: str, after: str, kind: str, value: float
) -> None:
    write(fake, before)
    with Probe(fake) as probe:
        assert "devices" in probe.line()
        assert probe.line() == {"signals": []}
        write(fake, after)
        assert probe.signals() == [(kind, value)]


def test_an_error_names_its_block(fake: dict[str, str]) -> None:
    write(fake, "uncorrected 2\n")
    with Probe(fake) as probe:
        assert "devices" in probe.line()
        assert probe.line() == {"signals": []}
        write(fake, "uncorrected 3\n")
        while not (signals := probe.line()["signals"]):
            pass
        assert [(s["kind"], s["value"], s["detail"]) for s in signals] == [(k.RAS_UNCORRECTED, 1.0, "in block UMC")]


def test_an_xgmi_error_that_may_not_be_reset_counts_once(fake: dict[str, str]) -> None:
    write(fake, "may-not-reset 1\n")
    with Probe(fake) as probe:
        assert "devices" in probe.line()
        assert probe.line() == {"signals": []}
        write(fake, "may-not-reset 1\nxgmi 1\n")
        assert probe.signals() == [(k.XGMI_ERRORS, 1.0)]
        assert [probe.line() for _ in range(3)] == [{"signals": []}] * 3


def test_without_the_library_there_is_no_such_device(tmp_path: Path) -> None:
    with Probe({"ROCM_PATH": str(tmp_path)}) as probe:
        assert "does not find its library" in probe.line()["absent"]
        assert probe.process.wait(30) == 0


def test_without_the_package_there_is_no_such_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchrelay.agent.health.gpus import amd
    from torchrelay.agent.health.probes.source import AbsentError

    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(AbsentError, match=r"pip install torchrelay\[amd\]"):
        amd.open_source({})
