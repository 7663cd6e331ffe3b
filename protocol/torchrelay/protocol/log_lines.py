"""Lines of logs: text for people, or JSON with one id of the run in every line of command, controller, agent and shim."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from enum import Enum

from torchrelay.protocol.names import ENV_LOG, ENV_WORKER


class LogFormat(str, Enum):
    TEXT = "text"
    JSON = "json"


class LogPart(str, Enum):
    """Who says a line."""

    COMMAND = "command"
    CONTROLLER = "controller"
    AGENT = "agent"
    SHIM = "shim"


def for_children(form: LogFormat, run_id: str) -> dict[str, str]:
    """Environment by which processes of the run write their lines alike; nothing where lines are text."""
    return {ENV_LOG: f"{form.value} {run_id}"} if form is LogFormat.JSON else {}


def is_json(environ: Mapping[str, str]) -> bool:
    """Whether whoever started this process wants lines as JSON: `json`, or `json RUN`."""
    return environ.get(ENV_LOG, "").partition(" ")[0] == LogFormat.JSON.value


_of_process: dict[str, str] = {}
"""What `identify` was told: the shim's variables are taken out of the environment before the script runs."""


def identify(environ: Mapping[str, str]) -> None:
    """Whose lines these are, and in which form, by the variables of whoever started this process."""
    _of_process.clear()
    _of_process.update({name: environ[name] for name in (ENV_LOG, ENV_WORKER) if name in environ})


def json_line(part: LogPart, level: str, text: str, time_s: float, **more: str) -> str:
    """One object: `time_s`, `level`, `part`, `run` (and `worker`, of a shim), `text`."""
    told = {"time_s": round(time_s, 3), "level": level, "part": part.value}
    told["run"] = _of_process.get(ENV_LOG, "").partition(" ")[2]
    if part is LogPart.SHIM:
        told["worker"] = _of_process.get(ENV_WORKER, "")
    return json.dumps({**told, "text": text, **more})


def say(text: str, level: str = "warning", part: LogPart = LogPart.SHIM) -> None:
    """One line on stderr, of a program without `logging`: the shim, which owns none of it, or an end with a reason."""
    if is_json(_of_process):
        told = json_line(part, level, text, time.time())
    else:
        told = f"torchrelay: {text}" if part is LogPart.SHIM else f"torchrelay {part.value}: {text}"
    print(told, file=sys.stderr, flush=True)
