from __future__ import annotations

import io
import json
import logging

import pytest
from rich.text import Text

from torchrelay.cli.display import narrate
from torchrelay.cli.display.teller import Teller
from torchrelay.protocol.logs.log_lines import LogFormat, LogLines, LogPart, for_children
from torchrelay.protocol.logs.log_records import JsonFormatter
from torchrelay.protocol.names import ENV_LOG, ENV_WORKER, SHIM_ENV

JSON = {ENV_LOG: "json 5b69072e", ENV_WORKER: "n0.w1"}


def test_a_line_of_each_part_has_the_id_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    LogLines.from_environ(LogPart.SHIM, JSON).say("a thread is woken")
    record = logging.LogRecord("x", logging.WARNING, "f.py", 1, "n1 is %s", ("away",), None)
    of_agent = json.loads(JsonFormatter(LogLines.from_environ(LogPart.AGENT, JSON)).format(record))
    of_shim = json.loads(capsys.readouterr().err)
    assert {of_shim["run"], of_agent["run"]} == {"5b69072e"}
    assert (of_shim["part"], of_shim["worker"], of_shim["text"]) == ("shim", "n0.w1", "a thread is woken")
    assert (of_agent["part"], of_agent["level"], of_agent["text"]) == ("agent", "warning", "n1 is away")
    assert "worker" not in of_agent


def test_a_traceback_is_within_its_line() -> None:
    try:
        raise ValueError("broken")
    except ValueError as e:
        record = logging.LogRecord("x", logging.ERROR, "f.py", 1, "failed", (), (type(e), e, e.__traceback__))
    line = JsonFormatter(LogLines.from_environ(LogPart.CONTROLLER, JSON)).format(record)
    assert "\n" not in line
    assert "ValueError: broken" in json.loads(line)["traceback"]


def test_lines_are_text_unless_somebody_wants_json(capsys: pytest.CaptureFixture[str]) -> None:
    LogLines.from_environ(LogPart.SHIM, {}).say("not protecting this process")
    LogLines.from_environ(LogPart.AGENT, {}).say("the secret cannot be read", "error")
    assert capsys.readouterr().err == (
        "torchrelay: not protecting this process\ntorchrelay agent: the secret cannot be read\n"
    )
    assert for_children(LogFormat.TEXT, "ab") == {}
    assert LogLines.from_environ(LogPart.AGENT, for_children(LogFormat.JSON, "ab")) == LogLines(
        LogPart.AGENT, LogFormat.JSON, "ab"
    )


def test_the_script_does_not_see_the_variable() -> None:
    assert ENV_LOG in SHIM_ENV


def test_what_the_command_says_is_json_too() -> None:
    stream = io.StringIO()
    teller = Teller(stream, JSON, quiet=False)
    teller.say([narrate.line("rank 1 is lost, and [n0] with it " + "x" * 200, "yellow"), Text(), narrate.line("done")])
    lost, done = map(json.loads, stream.getvalue().splitlines())
    assert (lost["part"], lost["level"], lost["run"]) == ("command", "warning", "5b69072e")
    assert lost["text"].startswith("rank 1 is lost, and [n0] with it")
    assert (done["level"], done["text"]) == ("info", "done")
