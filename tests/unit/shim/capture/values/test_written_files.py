"""Files that training has opened and writes to: a new process goes on at their end, and a rehearsal leaves them alone."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from support.host_state import carry, take

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.capture.records import encode
from torchrelay.shim.capture.records.rebuild import StateRebuild
from torchrelay.shim.capture.state.filled_queues import FilledQueues
from torchrelay.shim.capture.state.process_settings import ProcessSettings
from torchrelay.shim.capture.values.written_files import form_of
from torchrelay.shim.set_up.scratch_files import JoinerFiles

Open = Callable[..., IO[Any]]


class Holder:
    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


@pytest.fixture
def opened() -> Iterator[Open]:
    files: list[IO[Any]] = []

    def opens(*args: Any, **options: Any) -> IO[Any]:
        files.append(open(*args, **options))  # noqa: SIM115 - closed when the test is over
        return files[-1]

    yield opens
    for file in files:
        file.close()


def rebuilt(source: dict[str, Any], target: dict[str, Any], opens: Open) -> None:
    def no_saves(save: Any) -> Any:
        raise AssertionError(save)

    rebuild = StateRebuild(
        [], {"script": target}, no_saves, settings=ProcessSettings(), queues=FilledQueues(), opens=opens
    )
    rebuild.resolve(encode.decode(encode.encode(take(source))))
    rebuild.fill()


def test_a_new_process_goes_on_at_the_end_of_the_file_that_training_has_opened(tmp_path: Path, opened: Open) -> None:
    log = opened(tmp_path / "log", "w", encoding="latin-1")
    log.write("lost\xe9\n")
    log.flush()
    target = {"trainer": Holder()}
    rebuilt({"trainer": Holder(log=log, also=[log])}, target, opened)
    made = vars(target["trainer"])["log"]
    assert vars(target["trainer"])["also"] == [made]
    made.write("n\xe9w\n")
    made.flush()
    assert (tmp_path / "log").read_bytes() == b"lost\xe9\nn\xe9w\n"


@pytest.mark.parametrize(
    ("mode", "buffering"), [("wb", -1), ("ab", -1), ("xb", -1), ("wb", 0), ("w", 1), ("w", -1), ("x", -1)]
)
def test_what_was_opened_in_any_way_is_opened_again_alike(
    mode: str, buffering: int, tmp_path: Path, opened: Open
) -> None:
    form = form_of(opened(tmp_path / "log", mode, buffering))
    assert form is not None
    again = form_of(form.open(opened))
    assert again == form


def test_a_file_that_set_up_has_open_stays_as_it_is(tmp_path: Path, opened: Open) -> None:
    log, own = opened(tmp_path / "log", "w"), opened(tmp_path / "log", "a")
    target = {"trainer": Holder(log=own)}
    rebuilt({"trainer": Holder(log=log)}, target, opened)
    assert vars(target["trainer"])["log"] is own


def test_a_file_in_the_place_of_another_one_is_opened(tmp_path: Path, opened: Open) -> None:
    first, second = opened(tmp_path / "first", "w"), opened(tmp_path / "second", "w")
    target = {"trainer": Holder(log=first, later=None)}
    rebuilt({"trainer": Holder(log=second, later=first)}, target, opened)
    made = vars(target["trainer"])
    assert (made["log"].name, made["later"].name) == (str(tmp_path / "second"), str(tmp_path / "first"))


def test_what_cannot_be_opened_again_by_its_name_is_left_as_it_was(tmp_path: Path, opened: Open) -> None:
    closed = opened(tmp_path / "closed", "w")
    closed.close()
    replaced = opened(tmp_path / "replaced", "w")
    os.replace(tmp_path / "closed", tmp_path / "replaced")
    removed = opened(tmp_path / "removed", "w")
    os.unlink(tmp_path / "removed")
    read, both = opened(tmp_path / "replaced"), opened(tmp_path / "both", "w+")
    for file in (closed, replaced, removed, read, both, io.StringIO(), io.BytesIO()):
        assert form_of(file) is None


def test_a_file_that_is_gone_fails_the_way_in(tmp_path: Path, opened: Open) -> None:
    log = opened(tmp_path / "log", "w")

    def refuses(*_: Any) -> IO[Any]:
        raise PermissionError("no")

    with pytest.raises(StateMismatchError, match="which training had open, cannot be written to here"):
        rebuilt({"trainer": Holder(log=log)}, {"trainer": Holder()}, refuses)


def test_nothing_is_written_to_the_file_before_a_joiner_is_the_rank(tmp_path: Path, opened: Open) -> None:
    path = tmp_path / "log"
    log = opened(path, "w")
    log.write("step 1\n")
    log.flush()
    target = {"trainer": Holder()}
    with JoinerFiles() as files:
        rebuilt({"trainer": Holder(log=log)}, target, files.open)
        made = vars(target["trainer"])["log"]
        made.write("a step that is gone through once more\n")
        made.flush()
    assert path.read_text() == "step 1\n"
    made.write("step 2\n")
    form = form_of(made)
    made.close()
    assert path.read_text() == "step 1\nstep 2\n"
    assert form == form_of(log)


def test_set_ups_own_copy_of_a_file_stands_for_it(tmp_path: Path, opened: Open) -> None:
    path = tmp_path / "log"
    log = opened(path, "w")
    with JoinerFiles():
        own = open(path, "w")  # noqa: SIM115 - it outlives the set-up
        target = {"trainer": Holder(log=own)}
        carry({"trainer": Holder(log=log)}, target)
        assert vars(target["trainer"])["log"] is own
    own.close()
