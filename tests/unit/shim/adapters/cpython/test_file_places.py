"""Where the next read of a file begins, however it was read until then."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import pytest

from torchrelay.shim.adapters.cpython import file_places
from torchrelay.shim.adapters.cpython.csv_readers import lines_of

OPENS = {"plain": open, "packed": gzip.open}


def written(path: Path, opens: Any, encoding: str, end: str) -> Path:
    with opens(path, "wb") as file:
        file.write("".join(f"lïne {n * n}{end}" for n in range(3000)).encode(encoding))
    return path


@pytest.mark.parametrize("newline", [None, "", "\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("kind", OPENS)
def test_between_two_lines(tmp_path: Path, kind: str, end: str, encoding: str, newline: str | None) -> None:
    opens: Any = OPENS[kind]
    path = written(tmp_path / "lines", opens, encoding, end)
    with opens(path, "rt", encoding=encoding, newline=newline) as file:
        for count in (1, 2, 700, 300):
            for _ in range(count):
                next(file, None)
            place = file_places.place_of(file)
            assert place is not None
            with opens(path, "rt", encoding=encoding, newline=newline) as other:
                file_places.put(other, place)
                assert next(other, None) == next(file, None)


def test_where_it_cannot_be_told(tmp_path: Path) -> None:
    with open(written(tmp_path / "wide", open, "utf-16", "\n"), encoding="utf-16") as file:
        next(file)
        assert file_places.place_of(file) is None
    mixed = tmp_path / "mixed"
    mixed.write_bytes(b"one\r\ntwo\nthree\n")
    with open(mixed) as file:
        next(file)
        assert file_places.place_of(file) is None


def test_whether_ends_of_lines_are_translated_is_told_without_a_trace(tmp_path: Path) -> None:
    path = written(tmp_path / "lines", open, "utf-8", "\n")
    for newline, translated in ((None, True), ("", False), ("\n", None)):
        with open(path, newline=newline) as file:
            next(file)
            before = file.newlines
            assert file_places.is_translated(file) is translated
            assert file.newlines == before


def test_a_binary_file_tells_by_itself() -> None:
    file = io.BytesIO(b"0123456789")
    file.read(4)
    assert file_places.place_of(file) == 4


def test_what_a_reader_of_csv_draws_from() -> None:
    lines = iter(["a,b", "1,2"])
    assert lines_of(csv.reader(lines)) is lines
    assert lines_of(lines) is None
