from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys

import pytest
from rich.text import Text

from torchrelay.cli.display import narrate
from torchrelay.cli.display.teller import Teller
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.logs.log_lines import LogFormat, LogLines, LogPart, for_children
from torchrelay.protocol.logs.log_records import JsonFormatter, TextFormatter, of_run, wanted_level
from torchrelay.protocol.names import ENV_LOG, ENV_LOG_LEVEL, ENV_WORKER, EXIT_USAGE, SHIM_ENV

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
        "torchrelay: warning: not protecting this process\ntorchrelay agent: error: the secret cannot be read\n"
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


def test_a_line_about_one_of_several_runs_names_that_one(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("of a cluster")
    with caplog.at_level(logging.INFO, log.name):
        of_run(log, "team/llama").info("%s: %s", "team/llama", "a spare is made")
        log.info("ready")
    form = JsonFormatter(LogLines.from_environ(LogPart.CONTROLLER, {ENV_LOG: "json"}))
    about_one, about_none = (json.loads(form.format(record)) for record in caplog.records)
    assert (about_one["run"], about_one["level"]) == ("team/llama", "info")
    assert about_one["text"] == "team/llama: a spare is made"
    assert about_none["run"] == ""


def test_the_level_is_that_of_the_environment_or_the_parts_own() -> None:
    assert wanted_level({}, logging.WARNING) == logging.WARNING
    assert wanted_level({ENV_LOG_LEVEL: "debug"}, logging.WARNING) == logging.DEBUG
    with pytest.raises(UserError, match="TORCHRELAY_LOG_LEVEL=loud: give one of debug, info, warning, error"):
        wanted_level({ENV_LOG_LEVEL: "loud"}, logging.WARNING)


@pytest.mark.parametrize(
    ("part", "command"),
    [
        ("webhook", ["torchrelay.webhook", "--config=/nowhere.yaml"]),
        ("dashboard", ["torchrelay.dashboard.cluster"]),
        ("controller", ["torchrelay.controller.kube"]),
        ("agent", ["torchrelay.agent.pod"]),
    ],
)
def test_each_program_of_a_cluster_says_its_lines_as_json_where_it_is_told_to(part: str, command: list[str]) -> None:
    environment = {**os.environ, ENV_LOG: "json team/llama", ENV_LOG_LEVEL: "loud"}
    done = subprocess.run(
        [sys.executable, "-m", *command], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    told = json.loads(done.stderr)
    assert (done.returncode, told["part"], told["level"], told["run"]) == (EXIT_USAGE, part, "error", "team/llama")
    assert "TORCHRELAY_LOG_LEVEL=loud" in told["text"]


def test_lines_of_logging_say_what_needs_attention_and_nothing_of_the_others() -> None:
    form = TextFormatter("torchrelay agent: %(word)s%(message)s")
    told = [
        form.format(logging.LogRecord("x", level, "f.py", 1, "it is so", (), None))
        for level in (logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
    ]
    assert told == [
        "torchrelay agent: it is so",
        "torchrelay agent: warning: it is so",
        "torchrelay agent: error: it is so",
        "torchrelay agent: error: it is so",
    ]
