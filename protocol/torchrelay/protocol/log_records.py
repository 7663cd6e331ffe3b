"""Records of `logging` as lines of logs, for controller and agent. The shim imports as little as it can: `log_lines`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping

from torchrelay.protocol.log_lines import LogPart, identify, is_json, json_line

_LEVELS = {logging.DEBUG: "debug", logging.INFO: "info", logging.WARNING: "warning"}


class JsonFormatter(logging.Formatter):
    """Of records of `logging`, as `json_line`; a traceback is in `traceback`."""

    def __init__(self, part: LogPart) -> None:
        super().__init__()
        self._part = part

    def format(self, record: logging.LogRecord) -> str:
        level = _LEVELS.get(record.levelno, "error")
        more = {"traceback": self.formatException(record.exc_info)} if record.exc_info else {}
        return json_line(self._part, level, record.getMessage(), record.created, **more)


def set_up(part: LogPart, level: int, environ: Mapping[str, str], text: str) -> None:
    """To be called once, by a program that uses `logging`. `text`: the format of lines for people. They go to stderr."""
    identify(environ)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(part) if is_json(environ) else logging.Formatter(text))
    logging.basicConfig(level=level, handlers=[handler])
