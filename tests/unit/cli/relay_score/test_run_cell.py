from __future__ import annotations

from pathlib import Path

import pytest

from torchrelay.cli.relay_score import run_cell
from torchrelay.cli.relay_score.entries import CorpusEntry
from torchrelay.cli.relay_score.where import Where
from torchrelay.cli.struck_runs.cells import all_cells
from torchrelay.protocol.errors import UserError

PROGRAM = """
import os, signal, sys
from pathlib import Path

out = Path(os.environ["CORPUS_OUT"])
runs = Path("runs")
runs.write_text(f"{runs.read_text() if runs.exists() else ''}x")
if len(runs.read_text()) == 1:
    (out / "half").write_text("of a run that was aborted")
    sys.stderr.write("terminate called without an active exception\\n" if WITH_THE_WORDS else "something else\\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGABRT)
(out / "whole").write_text("")
"""


def run(tmp_path: Path, *, with_the_words: bool) -> Path:
    (tmp_path / "program.py").write_text(PROGRAM.replace("WITH_THE_WORDS", str(with_the_words)))
    entry = CorpusEntry("once", "basics", "program.py", steps=8, ranks=1)
    return run_cell.run_undisturbed(entry, tmp_path, tmp_path, Where())


def test_a_reference_that_torch_aborted_at_its_end_is_run_again_from_nothing(tmp_path: Path) -> None:
    out = run(tmp_path, with_the_words=True)
    assert [p.name for p in out.iterdir()] == ["whole"]
    assert (tmp_path / "runs").read_text() == "xx"


def test_a_reference_that_fails_otherwise_is_not_run_again(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not run under torchrun: exit code 1"):
        run(tmp_path, with_the_words=False)
    assert (tmp_path / "runs").read_text() == "x"


def test_a_reference_may_take_longer_than_a_cell_and_not_for_ever(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import threading\nthreading.Event().wait()")
    entry = CorpusEntry("endless", "basics", "program.py", steps=8, ranks=1, timeout_s=0.5)
    with pytest.raises(UserError, match="no end within 2 s"):
        run_cell.run_undisturbed(entry, tmp_path, tmp_path, Where())


def test_a_reference_that_hangs_when_all_its_results_are_there_is_taken_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch does so now and then in the interpreter's end."""
    monkeypatch.setattr(run_cell, "AT_THE_END_S", 0.1)
    (tmp_path / "program.py").write_text(
        "import os, threading\nopen(os.path.join(os.environ['CORPUS_OUT'], 'rank-0.json'), 'w').close()\n"
        "threading.Event().wait()"
    )
    entry = CorpusEntry("hangs", "basics", "program.py", steps=8, ranks=1)
    assert [p.name for p in run_cell.run_undisturbed(entry, tmp_path, tmp_path, Where()).iterdir()] == ["rank-0.json"]


def test_a_reference_that_still_has_results_to_write_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_cell, "AT_THE_END_S", 0.0)
    (tmp_path / "program.py").write_text(
        "import os, threading\nopen(os.path.join(os.environ['CORPUS_OUT'], 'rank-1.json'), 'w').close()\n"
        "threading.Event().wait()"
    )
    entry = CorpusEntry("slow", "basics", "program.py", steps=8, ranks=1, timeout_s=0.5)
    with pytest.raises(UserError, match="no end within 2 s"):
        run_cell.run_undisturbed(entry, tmp_path, tmp_path, Where())


def test_a_reference_has_the_folders_of_the_corpus_that_its_entry_names_on_its_path(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "said.py").write_text("word = 'found'")
    (tmp_path / "program.py").write_text(
        "import os, said\nopen(os.path.join(os.environ['CORPUS_OUT'], said.word), 'w').close()"
    )
    entry = CorpusEntry("one", "basics", "program.py", steps=8, ranks=1, path=("more",))
    assert [p.name for p in run_cell.run_undisturbed(entry, tmp_path, tmp_path, Where()).iterdir()] == ["found"]


def test_an_entry_whose_ranks_hold_their_parts_alone_is_run_with_copies() -> None:
    alone = CorpusEntry("alone", "sharded", "program.py", steps=8, buddy_every=3)
    assert run_cell.protected(alone)[-3:] == ["--spares=1", "--buddy-every=3", "--buddy-sync"]
    assert not any("buddy" in word for word in run_cell.protected(CorpusEntry("one", "basics", "program.py", steps=8)))


@pytest.mark.parametrize(
    ("kind", "spares", "options"),
    [
        ("kill", 1, ["--max-restarts=0", "--respawn-limit=0", "--no-refill"]),
        ("respawn", 0, ["--max-restarts=0", "--respawn-limit=3", "--no-refill"]),
        ("refill", 1, ["--max-restarts=0", "--respawn-limit=0", "--refill"]),
        ("restart", 0, ["--max-restarts=3", "--respawn-limit=0", "--no-refill"]),
    ],
)
def test_a_loss_can_be_survived_in_the_way_that_its_cell_asks_about_and_in_no_other(
    kind: str, spares: int, options: list[str]
) -> None:
    entry = CorpusEntry("one", "basics", "program.py", steps=12, phases=("backward",))
    cells = all_cells([entry], 0, ("backward",), (kind,), ("first",))
    assert [c.kind for c in cells] == [kind]
    assert run_cell.spares(cells) == spares
    assert run_cell.ways_out(kind) == options
