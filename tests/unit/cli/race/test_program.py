from pathlib import Path

import pytest

from torchrelay.cli.race import program
from torchrelay.cli.race.tuning import checkpoint_every
from torchrelay.protocol.errors import UserError


def test_lines_added_leaves_out_empty_ones_and_their_indentation(tmp_path: Path) -> None:
    base, other = tmp_path / "a.py", tmp_path / "b.py"
    base.write_text("x = 1\n\ny = 2\nz = 3\n")
    other.write_text("x = 1\nif x:\n    y = 2\n\n\nnew = 4\n")

    assert program.lines_added(base, other) == 2


def test_an_arm_without_its_script_says_what_it_needs(tmp_path: Path) -> None:
    script, changed = tmp_path / "train.py", tmp_path / "train_ft.py"
    script.touch()
    changed.touch()

    own = program.own(script, ("--lr", "1"), [f"torchft={changed}"])

    assert own.command("", tmp_path, 2) == [str(script), "--lr", "1"]
    assert own.command(program.TORCHFT, tmp_path, 2) == [str(changed), "--lr", "1"]
    assert own.why_not(program.TORCHFT) == ""
    assert own.why_not(program.NVRX) == "needs a changed script: give --script-for nvrx=FILE"


def test_a_script_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        program.own(tmp_path / "gone.py", (), [])


def test_a_script_for_an_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="one of checkpoint, torchft, nvrx"):
        program.own(tmp_path / "gone.py", (), ["horovod=x.py"])


def test_saves_come_less_often_where_they_cost_more_and_faults_are_rarer() -> None:
    assert checkpoint_every(0.02, 100.0, 0.1) == 20
    assert checkpoint_every(0.08, 100.0, 0.1) == 40
    assert checkpoint_every(0.02, 400.0, 0.1) == 40
    assert checkpoint_every(0.0001, 1.0, 0.1) == 1


def test_a_script_in_the_working_folder_is_started_in_its_copy_and_another_one_where_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    inside, outside = folder / "train.py", tmp_path / "train_ft.py"
    folder.mkdir()
    inside.touch()
    outside.touch()

    copied = program.own(inside, (), [f"torchft={outside}"]).in_copy(folder, tmp_path / "copy")

    assert copied.command("", tmp_path, 2) == [str(tmp_path / "copy" / "train.py")]
    assert copied.command(program.TORCHFT, tmp_path, 2) == [str(outside)]
