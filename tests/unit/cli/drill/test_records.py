from __future__ import annotations

import json
from pathlib import Path

from torchrelay.cli.drill.records import (
    Line,
    Record,
    agreement,
    differences,
    follow,
    read,
    step_seconds,
    wrong_before_it_ended,
)

JUDGED = ("parameters",)


def lines(*texts: str, process: int = 1) -> list[Line]:
    return [Line(process, {"parameters": text}) for text in texts]


def record(*texts: str, end: str | None = "z") -> Record:
    return Record(lines(*texts), None if end is None else {"parameters": end})


REFERENCE = record("a", "b", "c", "d", "e")


def test_a_run_without_faults_is_the_same() -> None:
    assert differences([REFERENCE], [record("a", "b", "c", "d", "e")], JUDGED) == []


def test_a_step_that_is_done_again_repeats_its_line() -> None:
    assert differences([REFERENCE], [record("a", "b", "c", "c", "d", "e")], JUDGED) == []


def test_going_back_several_steps_is_followed() -> None:
    assert follow(REFERENCE, record("a", "b", "c", "a", "b"), JUDGED).steps == 2


def test_a_process_that_takes_over_may_come_in_further_on() -> None:
    taken = Record([*lines("a", "b"), *lines("d", "e", process=2)], {"parameters": "z"})
    assert differences([REFERENCE], [taken], JUDGED) == []


def test_what_a_joiner_writes_before_it_has_its_tensors_means_nothing() -> None:
    taken = Record([*lines("a", "b"), *lines("x", "c", "d", "e", process=2)], {"parameters": "z"})
    assert differences([REFERENCE], [taken], JUDGED) == []


def test_a_wrong_step_is_named_with_its_rank() -> None:
    assert differences([REFERENCE, REFERENCE], [REFERENCE, record("a", "b", "x", "y", "w")], JUDGED) == [
        "rank 1, step 3: other parameters"
    ]


def test_a_last_step_that_is_wrong_is_seen() -> None:
    assert differences([REFERENCE], [record("a", "b", "c", "d", "x")], JUDGED) == ["rank 0, step 5: other parameters"]


def test_missing_steps_are_a_difference() -> None:
    assert differences([REFERENCE], [record("a", "b", "c")], JUDGED) == ["rank 0: 3 steps and not 5"]
    assert differences([REFERENCE], [Record()], JUDGED) == ["rank 0: 0 steps and not 5"]


def test_steps_beyond_the_end_are_a_difference() -> None:
    assert differences([REFERENCE], [record("a", "b", "c", "d", "e", "f")], JUDGED) == [
        "rank 0, step 6: a step more than the undisturbed run has"
    ]


def test_another_end_is_a_difference() -> None:
    assert differences([REFERENCE], [record("a", "b", "c", "d", "e", end="y")], JUDGED) == [
        "rank 0, at the script's end: other parameters"
    ]
    assert differences([REFERENCE], [record("a", "b", "c", "d", "e", end=None)], JUDGED) == [
        "rank 0, at the script's end: not reached"
    ]


def test_what_was_not_recorded_is_no_agreement() -> None:
    assert differences([REFERENCE], [Record(unrecorded="OSError: no space")], JUDGED) == [
        "rank 0: not recorded: OSError: no space"
    ]


def test_a_process_that_was_right_is_wrong_for_certain_after_two_unknown_steps() -> None:
    assert wrong_before_it_ended([REFERENCE], [record("a", "x")], JUDGED) == []
    assert wrong_before_it_ended([REFERENCE], [record("a", "x", "y")], JUDGED) == ["rank 0, step 2: other parameters"]


def test_a_process_that_was_never_right_is_given_more_time() -> None:
    few = Record([*lines("a"), *lines("x", "y", process=2)])
    many = Record([*lines("a"), *lines(*"stuvwxyz", process=2)])
    assert wrong_before_it_ended([REFERENCE], [few], JUDGED) == []
    assert wrong_before_it_ended([REFERENCE], [many], JUDGED) == ["rank 0, step 2: other parameters"]


def test_two_runs_agree_on_the_parts_that_are_the_same_in_all_steps() -> None:
    one = [Record([Line(1, {"parameters": "a", "random": "1"})]), Record([Line(1, {"parameters": "b", "random": "2"})])]
    two = [Record([Line(1, {"parameters": "a", "random": "1"})]), Record([Line(1, {"parameters": "b", "random": "3"})])]
    found = agreement(one, two)
    assert found.judged == ("parameters",)
    assert found.differs == {"random": "rank 1, step 1"}
    assert found.is_deterministic


def test_other_parameters_or_another_number_of_steps_mean_that_the_script_is_not_deterministic() -> None:
    assert agreement([record("a", "b")], [record("a", "x")]).differs == {"parameters": "rank 0, step 2"}
    assert not agreement([record("a", "b")], [record("a", "x")]).is_deterministic
    assert not agreement([record("a", "b")], [record("a")]).is_deterministic
    assert not agreement([Record()], [Record()]).is_deterministic


def test_only_what_is_judged_counts() -> None:
    reference = Record([Line(1, {"parameters": "a", "random": "1"})])
    other = Record([Line(1, {"parameters": "a", "random": "2"})])
    assert differences([reference], [other], ("parameters",)) == []
    assert differences([reference], [other], ("parameters", "random")) == ["rank 0, step 1: other random"]


def test_a_step_lasts_from_one_look_to_the_next_without_the_looking() -> None:
    found = Record([Line(1, {}, float(n), n + 0.25) for n in range(4)] + [Line(2, {}, 9.0, 9.5)])
    assert step_seconds(found) == [0.75, 0.75]


def test_a_line_that_is_not_whole_is_left_out(tmp_path: Path) -> None:
    step = {"process": 7, "step": {"parameters": "a"}, "entered_s": 1.0, "left_s": 2.0, "memory_bytes": 5}
    (tmp_path / "rank-0.jsonl").write_text(json.dumps(step) + "\n" + json.dumps(step)[:20])
    (tmp_path / "rank-1.jsonl").write_text(json.dumps(step) + "\n" + json.dumps({"process": 7, "stopped": True}) + "\n")
    first, second, third = read(tmp_path, 3)
    assert first.lines == [Line(7, {"parameters": "a"}, 1.0, 2.0, 5)]
    assert second.stopped
    assert not first.stopped
    assert not third.lines


def test_a_step_after_an_end_takes_the_end_back(tmp_path: Path) -> None:
    """A rank that waits at its end can be called back to go on."""
    step = {"process": 7, "step": {"parameters": "a"}, "entered_s": 1.0, "left_s": 2.0, "memory_bytes": 5}
    (tmp_path / "rank-0.jsonl").write_text(json.dumps({"process": 7, "end": {}}) + "\n" + json.dumps(step) + "\n")
    assert read(tmp_path, 1)[0].end is None
