"""Records of `logging` as lines of logs, for controller and agent. The shim imports as little as it can: `log_lines`."""

from __future__ import annotations

import logging
import sys

from torchrelay.protocol.logs.log_lines import LogLines
from torchrelay.protocol.logs.standard_streams import unfailing

_LEVELS = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning"}


class JsonFormatter(logging.Formatter):
    """Of records of `logging`, as `LogLines.json_line`; a traceback is in `traceback`."""

    def __init__(self, lines: LogLines) -> None:
        super().__init__()
        self._lines = lines

    def format(self, record: logging.LogRecord) -> str:
        level = _LEVELS.get(record.levelno, "error")
        more = {"traceback": self.formatException(record.exc_info)} if record.exc_info else {}
        return self._lines.json_line(level, record.getMessage(), record.created, **more)


def set_up(lines: LogLines, level: int, text: str) -> None:
    """To be called once, by a program that uses `logging`. `text`: the format of lines for people. They go to stderr."""
    handler = logging.StreamHandler(unfailing(sys.stderr))
    handler.setFormatter(JsonFormatter(lines) if lines.is_json else logging.Formatter(text))
    logging.basicConfig(level=level, handlers=[handler])
