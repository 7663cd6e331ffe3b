"""What the images are made of. They are not built here: that needs Docker."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "docker"
PARTS = ("agent", "controller", "webhook")
TAKEN_ALONG = {"controller": ("dashboard",)}
"""The controller's pod has a container with the dashboard, of the same image."""
OPTIONAL = {"amdsmi"}
"""Looked for when the agent runs, and done without."""


def plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def asked_for(part: str) -> set[str]:
    return {plain(line) for line in (FOLDER / "requirements" / f"{part}.in").read_text().split()}


def locked(part: str) -> dict[str, str]:
    """Version by package; each has a hash."""
    text = (FOLDER / "requirements" / f"{part}.txt").read_text().replace("\\\n", " ")
    versions = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            found = re.match(r"([-A-Za-z0-9_.]+)==(\S+)\s+--hash=sha256:[0-9a-f]{64}", line)
            assert found, line
            versions[plain(found[1])] = found[2]
    return versions


@functools.cache
def graph() -> grimp.ImportGraph:
    packages = [f"torchrelay.{part}" for part in (*PARTS, "protocol", "shim", "cli", "dashboard")]
    return grimp.build_graph(*packages, include_external_packages=True)


@pytest.mark.parametrize("part", PARTS)
def test_an_image_has_what_its_part_imports_and_no_more(part: str) -> None:
    upstream = set[str]()
    for inside in (part, *TAKEN_ALONG.get(part, ())):
        upstream |= graph().find_upstream_modules(f"torchrelay.{inside}", as_package=True)
    top_level = {m.split(".")[0] for m in upstream} - {"torchrelay"} - set(sys.stdlib_module_names) - OPTIONAL
    wanted = asked_for(part)
    # Several packages can share a folder: any of those that are asked for will do.
    providers = metadata.packages_distributions()
    found = {name: {plain(p) for p in providers[name]} for name in top_level}
    needed = {min(packages & wanted or packages) for packages in found.values()}
    programs = {"py-spy"} if part == "agent" else set()
    assert needed | programs == wanted


@pytest.mark.parametrize("part", [*PARTS, "build"])
def test_everything_is_locked_by_hash_and_in_the_version_that_is_tested(part: str) -> None:
    versions = locked(part)
    assert asked_for(part) <= set(versions)
    tested = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    for name, version in tested.items():
        assert versions.get(plain(name), version) == version


@pytest.mark.parametrize("part", PARTS)
def test_an_image_runs_as_nobody_and_starts_its_part(part: str) -> None:
    stages = re.split(r"^FROM ", (FOLDER / "Dockerfile").read_text(), flags=re.MULTILINE)
    bodies = {stage.split("\n", 1)[0].split(" AS ")[1]: stage for stage in stages[1:]}
    assert bodies[part].startswith("base AS")
    assert "USER 65532:65532" in bodies["base"]
    assert "USER" not in bodies[part]
    command = re.search(r'CMD \["python", "-m", "([a-z.]+)"', bodies[part])
    assert command
    spec = command[1].replace(".", "/")
    assert spec.startswith(f"torchrelay/{part}")
    assert any((ROOT / part / spec).with_suffix(suffix).exists() for suffix in (".py", ""))


def test_nothing_but_sources_goes_to_the_builder() -> None:
    lines = (ROOT / ".dockerignore").read_text().split()
    assert lines[0] == "*"
    copied = {
        source.split("/")[0]
        for line in (FOLDER / "Dockerfile").read_text().splitlines()
        if line.startswith("COPY") and "--from" not in line
        for source in line.split()[1:-1]
    }
    assert copied == {line[1:].split("/")[0] for line in lines if line.startswith("!")}


def test_the_shim_is_taken_along_by_the_agents_image_and_the_dashboard_by_the_controllers_alone(tmp_path: Path) -> None:
    """The part of install.sh that needs no package index, with a pip that does nothing."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$2" = pip ] && exit 0\nexec ' + sys.executable + ' "$@"\n')
    python.chmod(0o755)
    left = {}
    for part in PARTS:
        target = tmp_path / part
        for name in (*PARTS, "shim", "cli", "dashboard", "protocol"):
            (target / "torchrelay" / name).mkdir(parents=True)
            (target / "torchrelay" / name / "m.py").write_text("x = 1\n")
        (target / "a-1.dist-info").mkdir()
        (target / "a-1.dist-info" / "RECORD").write_text("when")
        env = {"PATH": os.environ["PATH"], "PYTHON": str(python), "SOURCE_DATE_EPOCH": "86400"}
        subprocess.run(["sh", str(FOLDER / "install.sh"), part, str(target)], env=env, check=True, timeout=60)
        left[part] = {p.name for p in (target / "torchrelay").iterdir()}
        files = list(target.rglob("*"))
        assert {int(f.stat().st_mtime) for f in files} == {86400}
        assert not any(f.name == "RECORD" for f in files)
        assert any(f.suffix == ".pyc" for f in files)
    assert left == {
        "agent": {"agent", "protocol", "shim"},
        "controller": {"controller", "dashboard", "protocol"},
        "webhook": {"webhook", "protocol"},
    }
