import json
from dataclasses import replace
from pathlib import Path

import pytest

from torchrelay.cli.race import picture, report
from torchrelay.cli.race.figures import Figures, RaceFaultCost
from torchrelay.cli.race.results import ArmResult, as_json, together

FIGURES = Figures(2, 101, 100.0, 1.0, 0, 0, (), ((0.0, 1), (100.0, 101)))
BASE = ArmResult("baseline", 1, 110.0, "", FIGURES, (), 0, "2.5", None)
STRUCK = ArmResult(
    "relay",
    1,
    120.0,
    "",
    replace(FIGURES, training_s=125.0, costs=(RaceFaultCost(2.0, 1.0),), rank_steps_missed=3),
    (("kill of rank 1", 40.0, 40.5),),
    0,
    "2.5",
    True,
    {"fence": 0.5, "prepare": 0.0},
)
ABOUT = report.About("race", "2 processors", "Faults", {"relay": "as shipped"}, {"gone": "no wheel"}, {}, {})


def about() -> report.About:
    names = ("baseline", "relay", "gone")
    return replace(ABOUT, lines_changed=dict.fromkeys(names, 0), spares=dict.fromkeys(names, 1))


def row(results: list[ArmResult], label: str) -> list[str]:
    found = report.rows(together(results, "baseline"), about())
    return next(r[1:] for r in found if r[0] == label)


def test_ratios_are_taken_within_a_repetition() -> None:
    slow = replace(BASE, repetition=2, figures=replace(FIGURES, training_s=200.0))
    relay = replace(STRUCK, figures=replace(FIGURES, training_s=125.0))
    relay_slow = replace(relay, repetition=2, figures=replace(FIGURES, training_s=250.0))

    found = together([BASE, relay, slow, relay_slow], "baseline")

    assert found[1].ratios == (pytest.approx(0.8), pytest.approx(0.8))


def test_the_table_says_what_a_fault_cost() -> None:
    assert row([BASE, STRUCK], "one fault, s: standing + doing again") == ["-", "2.00 + 1.00"]
    assert row([BASE, STRUCK], "phases of the downtime, s") == ["not told", "fence 0.50"]
    assert row([BASE, STRUCK], "samples lost") == ["0", "18"]
    assert row([BASE, STRUCK], "wasted, s x ranks") == ["0.0", "9.0"]
    assert row([BASE, STRUCK], "bitwise equal to baseline") == ["-", "yes"]


def test_steps_without_numbers_say_nothing_of_samples() -> None:
    unnumbered = replace(STRUCK, figures=replace(FIGURES, steps_redone=None))

    assert row([BASE, unnumbered], "samples lost") == ["0", "-"]
    assert row([BASE, unnumbered], "steps done again") == ["0", "-"]


def test_a_run_that_did_not_end_counts_for_nothing_and_is_told() -> None:
    failed = replace(STRUCK, ended="exit code 1", is_bitwise=None)

    assert row([BASE, failed], "runs that came to their end") == ["1 of 1", "0 of 1"]
    assert row([BASE, failed], "ratio to baseline") == ["1.000", "-"]
    assert "*relay*, repetition 1: exit code 1" in report.as_markdown(together([BASE, failed], "baseline"), about())


def test_an_arm_that_was_not_run_is_told_with_the_reason() -> None:
    assert "*gone* was not run: no wheel" in report.as_markdown(together([BASE], "baseline"), about())


def test_one_repetition_with_other_weights_is_not_hidden() -> None:
    other = replace(STRUCK, repetition=2, is_bitwise=False)

    assert row([BASE, STRUCK, other], "bitwise equal to baseline") == ["-", "1 of 2"]
    assert "NOT bitwise equal" in report.told(other)


def test_results_take_their_place_in_a_page() -> None:
    page = f"# Race\n{report.BEGIN}\nold\n{report.END}\nrest\n"

    assert report.with_results(page, "new\n") == f"# Race\n{report.BEGIN}\nnew\n{report.END}\nrest\n"
    with pytest.raises(ValueError, match="there are no lines"):
        report.with_results("# Race\n", "new\n")


def test_a_run_as_json_has_its_faults_and_figures() -> None:
    found = json.loads(json.dumps(as_json(STRUCK)))

    assert found["faults"] == [{"fault": "kill of rank 1", "due_s": 40.0, "struck_s": 40.5}]
    assert found["figures"]["costs"] == [{"stall_s": 2.0, "redo_s": 1.0}]


def test_the_picture_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    picture.draw([BASE, STRUCK], tmp_path / "race.png")

    assert (tmp_path / "race.png").read_bytes().startswith(b"\x89PNG")
