from __future__ import annotations

import pytest
from wild.programs import load


def test_a_program_on_a_gpu_keeps_its_devices_and_its_backend() -> None:
    manifest = load()
    (program,) = manifest.on_gpu(["nanogpt"])
    on_cpu = manifest.named(["nanogpt"])[0]
    assert "--device=cpu" in on_cpu.command
    assert not any("cpu" in word or "gloo" in word for word in program.command)
    assert program.replace == ("deterministic",)
    assert program.sha256 == on_cpu.sha256, "the same source"


def test_a_program_that_is_not_known_to_run_on_a_gpu_is_refused_by_name() -> None:
    with pytest.raises(KeyError, match="edm is not known to run on a GPU"):
        load().on_gpu(["edm"])
    assert "edm" not in [program.name for program in load().on_gpu([])]
