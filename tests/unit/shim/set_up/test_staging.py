from __future__ import annotations

import builtins
import io
import os
from pathlib import Path

import pytest

from torchrelay.shim.set_up.staging import Staging


def test_output_and_files_of_the_set_up_go_aside_until_the_process_speaks_for_its_rank(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "log.txt"
    log.write_text("step 1\n")
    staging = Staging()
    staging.begin()
    os.write(1, b"set-up\n")
    os.write(2, b"warning\n")
    log.write_text("overwritten\n")
    staging.release()
    os.write(1, b"step 2\n")
    assert capfd.readouterr() == ("step 2\n", "")
    assert log.read_text() == "step 1\n"


def test_when_the_way_in_fails_what_was_printed_is_shown(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Such a process ends with its files still aside; the one of the tests goes on.
    for owner in (builtins, io):
        monkeypatch.setattr(owner, "open", owner.open)
    staging = Staging()
    staging.begin()
    try:
        os.write(1, b"the reason\n")
        staging.show()
        staging.show()
    finally:
        staging._files.release()  # a process would end here with its files aside; this one has other tests to run
    out, err = capfd.readouterr()
    assert (out + err).count("the reason") == 1


def test_what_was_never_begun_ends_quietly(capfd: pytest.CaptureFixture[str]) -> None:
    staging = Staging()
    staging.release()
    staging.show()
    assert capfd.readouterr() == ("", "")
