"""A process of one part, from its start to its exit code: what it cannot go on with is said once, in one line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from torchrelay.protocol.errors import TorchrelayError, UserError
from torchrelay.protocol.logs.log_lines import LogLines, LogPart
from torchrelay.protocol.logs.log_records import set_up, wanted_level
from torchrelay.protocol.names import EXIT_USAGE


def run_part(
    part: LogPart,
    environ: Mapping[str, str],
    text: str,
    work: Callable[[], int | None],
    *,
    usual: int = logging.WARNING,
) -> int:
    """Do the work of a part's process. Return its exit code: that of the work, or 0 where it returns none.

    `text`: as in `set_up`; `usual`: as in `wanted_level`.
    """
    log = LogLines.from_environ(part, environ)
    try:
        set_up(log, wanted_level(environ, usual), text)
        return work() or 0
    except UserError as e:
        log.say(str(e), "error")
        return EXIT_USAGE
    except TorchrelayError as e:
        log.say(str(e), "error")
        return 1
