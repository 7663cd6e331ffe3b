"""Which files training opens is told, by whatever function it opens them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch

from torchrelay.shim.adapters.checkpoints import written_archives
from torchrelay.shim.capture.state.training_files import TrainingFiles
from torchrelay.shim.set_up.files_of_training import FilesOfTraining


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> Iterator[TrainingFiles]:
    told = TrainingFiles()
    writer = torch.serialization._open_zipfile_writer_file
    monkeypatch.setattr(writer, "__init__", writer.__init__)
    watched = FilesOfTraining(told, lambda: True, lambda: None)
    watched.begin()
    told.at_boundary()
    yield told
    watched._end()


def carried(files: TrainingFiles) -> set[str]:
    files.at_boundary()
    return {Path(path).name for path in files.now()}


def test_reading_and_writing_by_python(files: TrainingFiles, tmp_path: Path) -> None:
    path, count = tmp_path / "text", tmp_path / "count"
    for each in (path, count):
        each.write_text("1")
    files.at_boundary()
    path.write_text(path.read_text() + "2")
    with open(count, "r+") as file:
        file.write("2")
    assert carried(files) == {"text", "count"}


def test_what_is_renamed_onto_a_file_is_written_to_it(files: TrainingFiles, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("1")
    files.at_boundary()
    (tmp_path / "part").write_text(path.read_text() + "2")
    os.replace(tmp_path / "part", path)
    assert carried(files) == {"text"}


def test_arrays_and_archives(files: TrainingFiles, tmp_path: Path) -> None:
    numpy.save(tmp_path / "table.npy", numpy.zeros(2))
    torch.save({"n": 1}, tmp_path / "saved.pt")
    files.at_boundary()
    numpy.save(tmp_path / "table.npy", numpy.load(tmp_path / "table.npy"))
    torch.save(torch.load(tmp_path / "saved.pt"), tmp_path / "saved.pt")
    assert carried(files) == {"table.npy", "saved.pt"}


def test_a_file_that_is_kept_open_from_before(tmp_path: Path, files: TrainingFiles) -> None:
    files._written.clear()
    with open(tmp_path / "log", "a") as log:
        files._written.clear()
        files.at_boundary()
        print("line", file=log, flush=True)
        (tmp_path / "log").read_text()
        assert carried(files) == {"log"}


def test_a_file_that_is_only_read_is_not_told_as_written(files: TrainingFiles, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("1")
    files.at_boundary()
    (tmp_path / "data").read_text()
    files.at_boundary()
    assert carried(files) == set()


def test_the_writer_of_archives_is_where_it_is_looked_for() -> None:
    assert "name" in torch.serialization._open_zipfile_writer_file.__init__.__code__.co_varnames
    assert written_archives.watch.__module__.endswith("written_archives")
