"""What the dashboard in a controller's pod asks the controller for: lines of JSON, against the stream of `job_feed`.

The answer is a line of that stream.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from torchrelay.protocol.errors import FrameError

LONGEST_ASK_BYTES = 16 << 10


@dataclass(frozen=True)
class AskToMove:
    """Asks for a planned move of a rank. `number`: of this ask, for its answer. `by`: the name of whose token it was asked with."""

    number: int
    namespace: str
    job: str
    rank: int
    reason: str
    by: str


@dataclass(frozen=True)
class AskToClear:
    """Asks for the end of a quarantine. `subject`: a device or node, as the page of this job shows it."""

    number: int
    namespace: str
    job: str
    subject: str
    reason: str
    by: str


Ask = AskToMove | AskToClear
_KINDS: dict[str, type] = {c.__name__: c for c in (AskToMove, AskToClear)}


def pack_ask(ask: Ask) -> bytes:
    """Return the line with its end."""
    return json.dumps({"kind": type(ask).__name__, **asdict(ask)}).encode() + b"\n"


def parse_ask(text: bytes) -> Ask:
    """Read a line. Raises FrameError for a line that this version does not know."""
    try:
        fields = json.loads(text)
        kind = _KINDS[fields.pop("kind")]
        ask: Ask = kind(**fields)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise FrameError(f"the dashboard asks for something unknown: {text[:80]!r}: {e}") from e
    for name, value in asdict(ask).items():
        is_number = name in ("number", "rank")
        if (type(value) is not int or value < 0) if is_number else (type(value) is not str or not value):
            raise FrameError(f"the dashboard asks for something with {name} {str(value)[:80]!r}")
    return ask
