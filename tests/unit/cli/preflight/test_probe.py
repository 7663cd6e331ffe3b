"""What is looked at on a real machine."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from torchrelay.cli.preflight.probe import Probe


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    return Probe({**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")})


def test_a_folder_that_is_not_there_yet_is_tried_where_it_would_be_made(probe: Probe, tmp_path: Path) -> None:
    facts = probe.folder(tmp_path / "a" / "b")
    assert (facts.problem, facts.exists) == ("", True)
    assert 0 < facts.free_bytes <= facts.size_bytes
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["/proc/x", "/sys/x", "/dev/null/x"])
def test_a_folder_that_only_looks_as_if_it_could_be_written_is_found_out(probe: Probe, folder: str) -> None:
    assert probe.folder(Path(folder)).problem


def test_a_file_in_the_way_is_named(probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert probe.folder(tmp_path / "file" / "jit").problem == f"{tmp_path}/file is no folder"


def test_this_machine_can_be_looked_at(probe: Probe, tmp_path: Path) -> None:
    assert probe.limits().open_files == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert probe.memory().machine_bytes > probe.memory().used_bytes > 0
    assert probe.has_pidfd()
    assert probe.loopback_problem() == ""
    assert probe.clock().now_s > probe.clock().built_s > 1.7e9
    cache = probe.cache_folder()
    assert cache is not None
    assert (cache.path, cache.problem) == (tmp_path / "cache" / "torchrelay" / "code", "")


def test_a_name_that_nobody_knows_cannot_be_reached(probe: Probe) -> None:
    assert probe.address_problem("no-such-host.invalid")
    assert probe.address_problem("127.0.0.1") == ""


def test_a_process_that_does_not_answer_is_really_looked_at(probe: Probe) -> None:
    reader = probe.reader()
    assert reader.program.endswith("py-spy")
    assert reader.problem == "" or "ermission" in reader.problem


def test_a_training_process_is_looked_at_from_within(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("")
    facts = Probe({**os.environ, "PYTHONPATH": str(tmp_path)}).worker
    assert (facts.problem, facts.executable, facts.let_in) == ("", sys.executable, True)
    assert facts.shadowed == str(tmp_path / "sitecustomize.py")
    assert (facts.torch_problem, facts.shim_problem) == ("", "")
    assert "gloo" in facts.backends


def test_a_torch_that_cannot_be_imported_is_told_with_its_error(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch is gone')")
    facts = Probe({**os.environ, "PYTHONPATH": str(tmp_path)}).worker
    assert facts.torch_problem == "ImportError: libtorch is gone"


def test_an_interpreter_that_ignores_our_folder_is_found_out(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        textwrap.dedent(f"""\
            #!/bin/sh
            exec {sys.executable} -E "$@"
        """)
    )
    python.chmod(0o755)
    said = subprocess.run(
        [sys.executable, "-c", _ASK, str(python)], capture_output=True, text=True, check=True, env=dict(os.environ)
    ).stdout
    assert said.strip() == "False"


_ASK = """
import os, sys
from torchrelay.agent.worker_facts import worker_facts
print(worker_facts(sys.argv[1], os.environ)["let_in"])
"""
