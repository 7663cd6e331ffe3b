"""Files that training reads: a rank that goes back reads the same again, and a new process goes on at the same place."""

from __future__ import annotations

import csv
import gzip
import io
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.host_state import carry, take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.models.modules import ModuleTrees
from torchrelay.shim.capture.records import undo
from torchrelay.shim.capture.state.change_detection import WalkAnew
from torchrelay.shim.capture.values.kinds import Kind
from torchrelay.shim.capture.values.read_files import FilePlace, form_of, place_of
from torchrelay.shim.capture.walks.rewalk import Rewalk

OPENED: dict[str, Any] = {
    "text": partial(open),
    "lines ended in any way": partial(open, newline=""),
    "binary": partial(open, mode="rb"),
    "without a buffer": partial(open, mode="rb", buffering=0),
    "read and written": partial(open, mode="r+b"),
    "packed": partial(gzip.open),
    "packed text": partial(gzip.open, mode="rt"),
}


def of_numbers(path: Path, kind: str) -> Path:
    content = b"".join(b"%d\n" % (n * n) for n in range(2000))
    path.write_bytes(gzip.compress(content) if kind.startswith("packed") else content)
    return path


@pytest.mark.parametrize("kind", OPENED)
def test_it_is_read_again_and_goes_on_elsewhere(tmp_path: Path, kind: str) -> None:
    path = of_numbers(tmp_path / "numbers", kind)
    file = OPENED[kind](path)
    for _ in range(5):
        file.readline()
    state = take({"file": file})
    expected = [file.readline() for _ in range(3)]
    undo.undo(state)
    there = OPENED[kind](path)
    carry({"file": file}, {"file": there})
    target: dict[str, Any] = {}
    carry({"file": file}, target)
    undo.undo(state)
    assert [file.readline() for _ in range(3)] == expected
    assert [there.readline() for _ in range(3)] == expected
    assert [target["file"].readline() for _ in range(3)] == expected
    for opened in (file, there, target["file"]):
        opened.close()


@pytest.mark.parametrize("kind", OPENED)
def test_a_file_that_the_step_has_closed_is_opened_again(tmp_path: Path, kind: str) -> None:
    file = OPENED[kind](of_numbers(tmp_path / "numbers", kind))
    file.readline()
    state = take({"file": file})
    expected = file.readline()
    file.close()
    undo.undo(state)
    assert file.readline() == expected
    file.close()


def test_a_file_that_is_closed_by_now_is_left_out_as_by_a_walk_from_scratch(tmp_path: Path) -> None:
    file = open(of_numbers(tmp_path / "numbers", "text"))  # noqa: SIM115 - it is closed where a step would
    namespace, trees = {"file": file}, ModuleTrees()
    state = take(namespace, trees)
    file.close()
    with pytest.raises(WalkAnew):
        Rewalk(trees, state, at_gate=False).run([], {"script": namespace})
    assert [node.kind for node in take(namespace).nodes] == [Kind.GLOBALS, Kind.SETTINGS]


def test_a_file_that_was_detached_from_its_text_is_left_out(tmp_path: Path) -> None:
    file = open(of_numbers(tmp_path / "numbers", "text"))  # noqa: SIM115 - its raw file is closed below
    namespace, trees = {"file": file}, ModuleTrees()
    state = take(namespace, trees)
    with file.detach():
        with pytest.raises(WalkAnew):
            Rewalk(trees, state, at_gate=False).run([], {"script": namespace})
        assert take(namespace).unknown == []


@pytest.mark.parametrize("newline", [None, "", "\n", "\r", "\r\n"])
def test_a_new_process_opens_it_with_the_same_ends_of_lines(tmp_path: Path, newline: str | None) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"a\rb\r\nc\nd\r")
    target: dict[str, Any] = {}
    with open(path, newline=newline) as file:
        carry({"file": file}, target)
        with target["file"] as there:
            assert there.readlines() == file.readlines()


def test_set_ups_file_is_known_by_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    of_numbers(tmp_path / "numbers", "text")
    (tmp_path / "elsewhere").mkdir()
    with open("numbers") as lost, open("numbers") as there:
        lost.readline()
        monkeypatch.chdir(tmp_path / "elsewhere")
        target: dict[str, Any] = {"file": there}
        carry({"file": lost}, target)
        assert target["file"] is there
        assert there.readline() == "1\n"


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    path = of_numbers(tmp_path / "numbers", "text")
    with open(path) as file:
        state = take({"file": file})
    path.unlink()
    with pytest.raises(StateMismatchError, match=f"{path}, which training reads, cannot be read from where it was"):
        undo.undo(state)


def test_a_file_in_memory_goes_by_what_it_holds() -> None:
    for made, new in ((io.BytesIO, b"xyz"), (io.StringIO, "xyz")):
        file: Any = made()
        file.write(new)
        state = take({"file": file})
        file.write(new)
        undo.undo(state)
        assert (file.getvalue(), file.tell()) == (new, 3)
        target: dict[str, Any] = {"file": made()}
        carry({"file": file}, target)
        assert (target["file"].getvalue(), target["file"].tell()) == (new, 3)


def test_a_reader_of_csv_is_looked_through(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    path.write_text("".join(f"{n},{n * n}\n" for n in range(100)))
    with open(path) as file, open(path) as file_there:
        rows = csv.reader(file)
        next(rows)
        state = take({"rows": rows})
        expected = next(rows)
        undo.undo(state)
        there = csv.reader(file_there)
        carry({"rows": rows}, {"rows": there})
        assert next(there) == next(rows) == expected == ["1", "1"]


def test_files_that_are_not_read_have_no_node(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as log:
        state = take({"log": log})
        assert [node.kind for node in state.nodes] == [Kind.GLOBALS, Kind.SETTINGS]
        assert state.unknown == []
        assert form_of(log) is None or not log.readable()


def test_what_cannot_be_told_is_named(tmp_path: Path) -> None:
    path = tmp_path / "wide"
    path.write_text("a\nb\n", encoding="utf-16")
    with open(path, encoding="utf-16") as file:
        assert take({"file": file}).nodes[-1].content == FilePlace(0)
        next(file)
        assert take({"file": file}).unknown == ["script.file (TextIOWrapper)"]


def test_a_file_that_two_objects_read_is_named(tmp_path: Path) -> None:
    with open(of_numbers(tmp_path / "numbers", "text")) as text:
        assert take({"text": text, "raw": text.buffer}).unknown == ["script.raw (BufferedReader)"]
        assert take({"raw": text.buffer, "text": text}).unknown == ["script.text (TextIOWrapper)"]


def test_a_file_that_is_added_to_is_opened_to_be_added_to(tmp_path: Path) -> None:
    path = of_numbers(tmp_path / "numbers", "text")
    with open(path, "a+") as file:
        file.seek(2)
        target: dict[str, Any] = {}
        carry({"file": file}, target)
        size = path.stat().st_size
        with target["file"] as there:
            assert there.readline() == "1\n"
            there.write("last\n")
    assert path.read_text()[size:] == "last\n"


def test_a_file_in_memory_that_somebody_looks_into_is_named() -> None:
    file = io.BytesIO(b"abc")
    state = take({"file": file})
    with file.getbuffer() as held:
        held[0:1] = b"x"
        with pytest.raises(StateMismatchError, match="BytesIO, which training reads"):
            undo.undo(state)


def test_a_file_that_is_written_as_well_is_told_by_what_it_holds(tmp_path: Path) -> None:
    with open(tmp_path / "both", "w+") as both, open(tmp_path / "both") as read:
        before = place_of(both)
        both.write("one\n")
        both.flush()
        both.seek(0)
        now = place_of(both)
        assert before is not None
        assert now is not None
        assert before.place == now.place
        assert before.mark != now.mark
        place = place_of(read)
        assert place is not None
        assert place.mark is None


def test_a_large_file_in_memory_is_told_by_pieces_of_it() -> None:
    file = io.BytesIO(bytes(1 << 20))
    before = place_of(file)
    file.seek(512 << 10)
    file.write(b"x")
    file.seek(0)
    assert before is not None
    assert place_of(file) != before
