"""`make images` with builders that only write down how they were called."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TOOLS = ("sh", "sed", "mv", "dirname", "git", "cat")
DIGEST = "sha256:" + "1" * 64


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The script and the Dockerfile in a repository of their own, and a PATH with nothing else."""
    project = tmp_path / "project"
    for name in ("scripts/build_images.sh", "deploy/docker/Dockerfile"):
        (project / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, project / name)
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "a commit"]):
        git(*arguments, cwd=project)
    (tmp_path / "bin").mkdir()
    for tool in TOOLS:
        (tmp_path / "bin" / tool).symlink_to(str(shutil.which(tool)))
    return project


def git(*arguments: str, cwd: Path) -> None:
    subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t.invalid", *arguments], cwd=cwd, check=True)


def add_tool(project: Path, name: str, says: str = "", fails: str = "") -> None:
    """`fails`: at which of its words."""
    path = project.parent / "bin" / name
    log, at = project.parent / "calls", fails or "nothing"
    end = f'case "$*" in *"{at}"*) exit 1 ;; esac'
    path.write_text(f'#!/bin/sh\necho {name} "$@" >>{log}\necho "{says}"\n{end}\n')
    path.chmod(0o755)


def build(project: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": str(project.parent / "bin"), "HOME": str(project), **environment}
    return subprocess.run(
        [str(project / "scripts/build_images.sh"), *arguments],
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


def calls(project: Path, word: str) -> list[str]:
    path = project.parent / "calls"
    return [line for line in path.read_text().splitlines() if f" {word} " in f"{line} "] if path.exists() else []


def test_a_machine_without_a_builder_says_what_to_install(project: Path) -> None:
    done = build(project)
    assert done.returncode == 3
    assert "install docker with buildx, podman, or buildah" in done.stderr


@pytest.mark.parametrize("tools", [(), ("docker",), ("podman",)], ids=["no builder", "no registry", "no skopeo"])
def test_ci_goes_on_where_a_machine_cannot_build_and_says_so(project: Path, tools: tuple[str, ...]) -> None:
    for tool in tools:
        add_tool(project, tool, fails="imagetools")
    assert build(project).returncode == 3
    done = build(project, "--where-possible")
    assert (done.returncode, done.stdout) == (0, "images are SKIPPED: this machine cannot build them\n"), done.stderr
    assert done.stderr.startswith("build_images: ")


def test_ci_builds_with_what_is_there_and_fails_where_the_build_fails(project: Path) -> None:
    add_tool(project, "docker", DIGEST)
    assert build(project, "--where-possible").returncode == 0
    assert len(calls(project, "--target")) == 3
    add_tool(project, "docker", DIGEST, fails="--target controller")
    done = build(project, "--where-possible")
    assert (done.returncode, "SKIPPED" in done.stdout) == (1, False)


def test_buildx_builds_all_parts_on_one_digest_with_sbom_and_provenance(project: Path) -> None:
    add_tool(project, "docker", DIGEST)
    done = build(project, REGISTRY="registry.invalid/x", TAG="9", PUSH="--push")
    assert done.returncode == 0, done.stderr
    built = calls(project, "build")
    assert [
        part for line in built for part in ("agent", "controller", "webhook") if f"registry.invalid/x/{part}:9" in line
    ] == [
        "agent",
        "controller",
        "webhook",
    ]
    for line in built:
        assert f"slim-trixie@{DIGEST}" in line
        assert "--sbom=true --provenance=mode=max --push" in line
        assert "--platform linux/amd64,linux/arm64" in line


def test_podman_pushes_both_architectures_and_says_what_it_lacks(project: Path) -> None:
    add_tool(project, "podman")
    add_tool(project, "skopeo", DIGEST)
    done = build(project, PUSH="--push")
    assert done.returncode == 0, done.stderr
    assert "neither an SBOM nor a provenance" in done.stdout
    assert len(calls(project, "build")) == 3
    assert len(calls(project, "rm")) == 3  # what an earlier build has left would be added to
    assert len(calls(project, "push")) == 3


@pytest.mark.parametrize(("says", "reason"), [("no such image", "no digest"), ("", "no digest")])
def test_a_base_without_a_digest_is_not_built_on(project: Path, says: str, reason: str) -> None:
    add_tool(project, "docker", says)
    done = build(project)
    assert done.returncode == 1
    assert reason in done.stderr
    assert calls(project, "--target") == []


def test_a_build_on_a_base_without_a_digest_says_so_even_where_nothing_can_be_built(project: Path) -> None:
    assert "without a digest: a build takes the one of its day" in build(project, "--where-possible").stderr
    add_tool(project, "docker", DIGEST)
    done = build(project)
    assert (done.returncode, "(make pin-images)" in done.stderr) == (0, True)
    assert build(project, "--pin").returncode == 0
    assert build(project).stderr == ""


def test_a_release_is_not_built_before_its_base_is_pinned(project: Path) -> None:
    add_tool(project, "docker", DIGEST)
    git("tag", "-a", "v9", "-m", "a release", cwd=project)
    for arguments in ((), ("--where-possible",)):
        done = build(project, *arguments)
        assert done.returncode == 1
        assert "the release v9 names its base" in done.stderr
        assert "run make pin-images" in done.stderr
    assert calls(project, "--target") == []
    assert build(project, "--pin").returncode == 0
    git("commit", "-qam", "the base of the day", cwd=project)
    git("tag", "-a", "v10", "-m", "a release", cwd=project)
    done = build(project)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(calls(project, "--target")) == 3


def test_the_base_can_be_pinned_once_for_all_builds(project: Path) -> None:
    add_tool(project, "docker", DIGEST)
    assert build(project, "--pin").stdout.endswith(f"slim-trixie@{DIGEST}\n")
    assert f"slim-trixie@{DIGEST}\n" in (project / "deploy/docker/Dockerfile").read_text()
    (project.parent / "calls").unlink()
    assert build(project).returncode == 0
    assert calls(project, "imagetools") == []
    assert all(f"slim-trixie@{DIGEST}" in line for line in calls(project, "--target"))


def test_to_pin_needs_no_builder_and_takes_the_digest_of_today(project: Path) -> None:
    for digest in (DIGEST, "sha256:" + "2" * 64):
        add_tool(project, "skopeo", digest)
        assert build(project, "--pin").returncode == 0
        assert f"slim-trixie@{digest}\n" in (project / "deploy/docker/Dockerfile").read_text()
    assert len(calls(project, "inspect")) == 2
