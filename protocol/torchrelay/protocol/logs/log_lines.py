"""Lines of logs: text for people, or JSON with one id of the run in every line of command, controller, agent and shim."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from torchrelay.protocol.logs.standard_streams import write_line
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
    WEBHOOK = "webhook"
    DASHBOARD = "dashboard"


def for_children(form: LogFormat, run_id: str) -> dict[str, str]:
    """Return the environment with which the run's other processes write lines like this one's; empty if lines are text."""
    return {ENV_LOG: f"{form.value} {run_id}"} if form is LogFormat.JSON else {}


@dataclass(frozen=True)
class LogLines:
    """The lines of one process. `run` and `worker`: what JSON lines say of it, empty where that is not known."""

    part: LogPart
    form: LogFormat = LogFormat.TEXT
    run: str = ""
    worker: str = ""

    @classmethod
    def from_environ(cls, part: LogPart, environ: Mapping[str, str]) -> LogLines:
        """Read which lines the parent process wants: `json`, or `json RUN`; anything else means text."""
        form, _, run = environ.get(ENV_LOG, "").partition(" ")
        return cls(
            part, LogFormat.JSON if form == LogFormat.JSON.value else LogFormat.TEXT, run, environ.get(ENV_WORKER, "")
        )

    @property
    def is_json(self) -> bool:
        return self.form is LogFormat.JSON

    def json_line(self, level: str, text: str, time_s: float, **more: str) -> str:
        """Return one object: `time_s`, `level`, `part`, `run` (and `worker`, of a shim), `text`, and what `more` names."""
        told = {"time_s": round(time_s, 3), "level": level, "part": self.part.value, "run": self.run}
        if self.part is LogPart.SHIM:
            told["worker"] = self.worker
        return json.dumps({**told, "text": text, **more})

    def say(self, text: str, level: str = "warning") -> None:
        """Print a line on stderr, for a program without `logging`: the shim, which owns none of it, or an end with a reason."""
        if self.is_json:
            told = self.json_line(level, text, time.time())
        else:
            who = "torchrelay" if self.part is LogPart.SHIM else f"torchrelay {self.part.value}"
            told = f"{who}: {level}: {text}"
        write_line(told)
