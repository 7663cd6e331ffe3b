import json
from pathlib import Path

from torchrelay.cli.race.step_log import Step, StepLogs


def test_logs_are_read_on_and_lines_that_are_not_whole_wait(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    first = json.dumps({"process": 5, "number": 1, "unix_s": 10.0}) + "\n"
    second = json.dumps({"process": 6, "number": 2, "unix_s": 11.0}) + "\n"
    logs = StepLogs([path])
    logs.read()
    assert logs.logs[0].steps == []

    path.write_text(first + second[:9])
    logs.read()
    assert logs.logs[0].steps == [Step(5, 1, 10.0)]

    path.write_text(first + second)
    logs.read()
    assert logs.logs[0].steps == [Step(5, 1, 10.0), Step(6, 2, 11.0)]


def test_an_end_counts_only_if_no_step_comes_behind_it(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.jsonl"
    end = json.dumps({"process": 5, "end": {"parameters": "abc"}}) + "\n"
    step = json.dumps({"process": 6, "number": 1, "unix_s": 12.0}) + "\n"
    logs = StepLogs([path])

    path.write_text(end)
    logs.read()
    assert logs.logs[0].end == "abc"

    path.write_text(end + step)
    logs.read()
    assert logs.logs[0].end == ""
