from __future__ import annotations

import hashlib
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from wild.programs import Manifest, Program
from wild.sources import SourceError, lay_out

SCRIPT = 'device = "cuda"\ndist.init_process_group("nccl")\nmodel = model.cuda(0)\n'
MANIFEST = Manifest(
    (), {}, {"cpu": (("([\"'])nccl\\1", '"gloo"'), ("([\"'])cuda\\1", '"cpu"'), (r"\.cuda\([^()]*\)", ".cpu()"))}
)


@pytest.fixture
def program(tmp_path: Path) -> Program:
    repository = tmp_path / "sources" / "owner+name" / "repo"
    (repository / "part").mkdir(parents=True)
    (repository / "part" / "train.py").write_text(SCRIPT)
    (repository / "part" / "notes.md").write_text("not needed")
    (repository / "other.py").write_text("of another part")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "first"]):
        subprocess.run(["git", "-C", str(repository), *words], check=True)
    told = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    )
    return Program(
        name="p", shape="", command=("train.py",), environment="e", repository="owner/name", commit=told.stdout.strip(),
        folder="part", file="train.py", sha256=hashlib.sha256(SCRIPT.encode()).hexdigest(), replace=("cpu",),
    )  # fmt: skip


def test_only_source_of_the_programs_folder_is_laid_out_and_its_devices_are_replaced(
    program: Program, tmp_path: Path
) -> None:
    lay_out(program, MANIFEST, tmp_path / "sources", tmp_path / "work")
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["train.py"]
    assert (tmp_path / "work" / "train.py").read_text() == (
        'device = "cpu"\ndist.init_process_group("gloo")\nmodel = model.cpu()\n'
    )


def test_another_main_file_than_the_manifest_names_is_refused(program: Program, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="has the digest"):
        lay_out(replace(program, sha256="0" * 64), MANIFEST, tmp_path / "sources", tmp_path / "work")


def test_a_commit_that_the_copy_lacks_is_refused(program: Program, tmp_path: Path) -> None:
    lacking = replace(program, commit="1" * 40, folder="missing")
    with pytest.raises(SourceError, match="111111"):
        lay_out(lacking, MANIFEST, tmp_path / "sources", tmp_path / "work")


def test_a_repository_that_is_not_there_is_named(program: Program, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="owner/name is not below"):
        lay_out(program, MANIFEST, tmp_path / "elsewhere", tmp_path / "work")
