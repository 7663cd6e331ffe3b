"""Records of `logging` as lines of logs, for controller, agent, webhook and dashboard. The shim imports less: `log_lines`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.logs.log_lines import LogLines
from torchrelay.protocol.logs.standard_streams import unfailing
from torchrelay.protocol.names import ENV_LOG_LEVEL

if TYPE_CHECKING:
    RunLogger = logging.LoggerAdapter[logging.Logger]

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_WORDS = {number: word for word, number in LEVELS.items()}


class JsonFormatter(logging.Formatter):
    """Formats records of `logging` like `LogLines.json_line`; a traceback is in `traceback`. A record of `of_run` names its run."""

    def __init__(self, lines: LogLines) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        level = _WORDS.get(record.levelno, "error")
        more = {"traceback": self.formatException(record.exc_info)} if record.exc_info else {}
        if run := getattr(record, "run", ""):
            more["run"] = run
        return self._lines.json_line(level, record.getMessage(), record.created, **more)


class TextFormatter(logging.Formatter):
    """Formats records for people. `%(word)s` in its format is `warning: ` or `error: `, and nothing for what is as it should be."""

    def format(self, record: logging.LogRecord) -> str:
        record.word = f"{_WORDS.get(record.levelno, 'error')}: " if record.levelno >= logging.WARNING else ""
        return super().format(record)


def of_run(log: logging.Logger, run: object) -> RunLogger:
    """Return a logger that names one run in its lines, for a program that serves several runs."""
    return logging.LoggerAdapter(log, {"run": str(run)})


def wanted_level(environ: Mapping[str, str], usual: int) -> int:
    """Return the level that the environment names, or else `usual`. Raises UserError for a word that is no level."""
    word = environ.get(ENV_LOG_LEVEL, "")
    if word and word not in LEVELS:
        raise UserError(f"{ENV_LOG_LEVEL}={word}: give one of {', '.join(LEVELS)}")
    return LEVELS.get(word, usual)


def set_up(lines: LogLines, level: int, text: str) -> None:
    """Set `logging` up, once for a program. Lines go to stderr. `text`: the format of lines for people."""
    handler = logging.StreamHandler(unfailing(sys.stderr))
    handler.setFormatter(JsonFormatter(lines) if lines.is_json else TextFormatter(text))
    logging.basicConfig(level=level, handlers=[handler])
