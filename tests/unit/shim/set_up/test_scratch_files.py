from __future__ import annotations

import builtins
import csv
import io
import logging
import os
import subprocess
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from torchrelay.shim.set_up.scratch_files import JoinerFiles


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """What the lost rank has written."""
    path = tmp_path / "log.txt"
    path.write_text("header\nstep 1\nstep 2\n")
    return path


@pytest.mark.parametrize("mode", ["w", "a", "x", "w+", "a+"])
def test_a_file_that_stays_open_goes_on_behind_what_the_lost_rank_wrote(log: Path, mode: str) -> None:
    with JoinerFiles():
        file = open(log, mode)  # noqa: SIM115 - it outlives the set-up
        file.write("header\n")
    file.write("step 3\n")
    file.close()
    assert log.read_text() == "header\nstep 1\nstep 2\nstep 3\n"


@pytest.mark.parametrize("buffering", [-1, 0, 5])
def test_binary_files_of_every_buffering_go_on_at_the_end(log: Path, buffering: int) -> None:
    with JoinerFiles():
        file = open(log, "wb", buffering)  # noqa: SIM115 - it outlives the set-up
        file.write(b"a header that is longer than all that the lost rank wrote")
    file.write(b"step 3\n")
    assert file.tell() == len("header\nstep 1\nstep 2\nstep 3\n")
    file.close()
    assert log.read_text() == "header\nstep 1\nstep 2\nstep 3\n"


def test_line_buffered_text_goes_on_at_the_end(log: Path) -> None:
    with JoinerFiles():
        file = open(log, "w", 1, "utf-8", "strict", "\n", True)  # noqa: SIM115 - it outlives the set-up
        file.write("header\nhalf a li")
    file.write("step 3\n")
    file.close()
    assert log.read_text() == "header\nstep 1\nstep 2\nstep 3\n"


def test_an_encoding_with_a_mark_at_the_start_writes_none_in_the_middle(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old", encoding="utf-16")
    with JoinerFiles():
        file = open(path, "w", encoding="utf-16")  # noqa: SIM115 - it outlives the set-up
        file.write("old")
    file.write("new")
    file.close()
    assert path.read_text(encoding="utf-16") == "oldnew"


def test_a_file_that_was_closed_again_is_as_the_lost_rank_left_it(log: Path) -> None:
    with JoinerFiles():
        log.write_text("nothing but this\n")
        with open(log, "ab") as file:
            file.write(b"and this")
    assert log.read_text() == "header\nstep 1\nstep 2\n"


def test_the_set_up_reads_what_it_has_written(log: Path) -> None:
    with JoinerFiles():
        log.write_text("fresh\n")
        with log.open("a") as file:
            file.write("more\n")
        assert log.read_text() == "fresh\nmore\n"
        with open(os.fsencode(log)) as file:
            assert file.read() == "fresh\nmore\n"


def test_appending_shows_the_position_behind_the_old_content(log: Path) -> None:
    with JoinerFiles(), open(log, "a+") as file:
        assert file.tell() == len("header\nstep 1\nstep 2\n")
        file.seek(0)
        assert file.readline() == "header\n"


def test_a_new_file_is_made_in_its_place_at_once(tmp_path: Path) -> None:
    with JoinerFiles():
        with open(tmp_path / "new", "x") as file:
            file.write("content")
        assert (tmp_path / "new").exists()
        with pytest.raises(FileExistsError):
            open(tmp_path / "new", "x").close()
    assert (tmp_path / "new").read_text() == "content"


def test_a_logging_handler_goes_on_behind_the_lost_ranks_lines(log: Path) -> None:
    with JoinerFiles():
        handler = logging.FileHandler(log)
        logger = logging.Logger("joiner")
        logger.addHandler(handler)
        logger.warning("set-up, repeated")
    logger.warning("step 3")
    handler.close()
    assert log.read_text() == "header\nstep 1\nstep 2\nstep 3\n"


def test_a_csv_writer_goes_on_behind_the_lost_ranks_rows(log: Path) -> None:
    with JoinerFiles():
        file = log.open("w", newline="")
        rows = csv.writer(file)
        rows.writerow(["header"])
    rows.writerow(["step 3", 1.5])
    file.close()
    assert log.read_bytes() == b"header\nstep 1\nstep 2\nstep 3,1.5\r\n"


def test_names_of_files_stay_the_users(log: Path) -> None:
    with JoinerFiles(), open(log, "w") as file:
        assert file.name == str(log)


def test_a_link_leads_to_the_same_file(log: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(log)
    with JoinerFiles():
        (tmp_path / "link").write_text("fresh")
        assert log.read_text() == "fresh"
    assert log.read_text() == "header\nstep 1\nstep 2\n"


def test_an_update_in_place_is_not_held_back(log: Path) -> None:
    with JoinerFiles(), open(log, "r+") as file:
        file.write("HEADER")
    assert log.read_text() == "HEADER\nstep 1\nstep 2\n"


def test_what_is_no_regular_file_is_opened_as_it_is(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with JoinerFiles():
        with open(os.devnull, "w") as file:
            assert file.write("gone") == 4
        with open(tmp_path / "pipe", "wb") as file:
            file.write(b"through")
        with pytest.raises(IsADirectoryError):
            open(tmp_path, "w").close()
        with pytest.raises(FileNotFoundError) as missing:
            open(tmp_path / "no" / "where", "w").close()
        descriptor = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
        with open(descriptor, "w") as file:
            file.write("by descriptor")
    assert os.read(reader, 100) == b"through"
    os.close(reader)
    assert (tmp_path / "other").read_text() == "by descriptor"
    assert missing.value.filename == str(tmp_path / "no" / "where")


def test_temporary_files_work(tmp_path: Path) -> None:
    with JoinerFiles(), tempfile.NamedTemporaryFile("w+", dir=tmp_path) as file, tempfile.TemporaryFile() as nameless:
        file.write("text")
        file.seek(0)
        assert file.read() == "text"
        nameless.write(b"x")


def test_a_temporary_folder_goes_with_what_another_process_has_written_there() -> None:
    with JoinerFiles(), tempfile.TemporaryDirectory() as folder:
        subprocess.run(["sh", "-c", 'mkdir "$0/sub" && touch "$0/port" "$0/sub/log"', folder], check=True)
        os.rename(f"{folder}/port", f"{folder}/sub/port")
        assert sorted(os.listdir(f"{folder}/sub")) == ["log", "port"]
    assert not os.path.lexists(folder)


def test_a_file_that_was_removed_meanwhile_is_made_again(log: Path) -> None:
    with JoinerFiles():
        file = open(log, "w")  # noqa: SIM115 - it outlives the set-up
        subprocess.run(["rm", log], check=True)
    file.write("step 3\n")
    file.close()
    assert log.read_text() == "step 3\n"


def test_open_is_the_builtin_again_and_what_kept_the_other_still_opens_files(log: Path) -> None:
    original = builtins.open
    files = JoinerFiles()
    files.start()
    holder = SimpleNamespace(kept=builtins.open)
    attribute = type("Class", (), {"open": open})
    with attribute().open(log) as file:
        assert file.readline() == "header\n"
    files.release()
    files.release()
    assert builtins.open is original
    assert io.open is original
    with holder.kept(log, "a") as file:
        file.write("step 3\n")
    assert log.read_text().endswith("step 2\nstep 3\n")
