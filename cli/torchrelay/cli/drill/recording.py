"""How the recorder gets into a run, and what it is told. It is the shim's file, and is never imported here."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from torchrelay.cli.drill.records import Parts
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.names import ENV_RECORD


@dataclass(frozen=True)
class RecordingSettings:
    """What the recorder is told.

    `folder`: where each rank writes its file. `hold`: while this file exists, ranks wait after a step. `slow`: while this one
    exists, steps take `LEAST_STEP_S` at the least.
    `times_only`: a step is written down as its time and number, without digests, which cost time.
    `stop_after`: the script ends after so many steps; 0: by itself. `stop_at`: by rank, it ends after the step with these parts.
    """

    folder: str
    stop_after: int = 0
    stop_at: Mapping[str, Parts] = field(default_factory=dict)
    hold: str = ""
    slow: str = ""
    times_only: bool = False


def variables(settings: RecordingSettings, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a run needs. `inherited`: the environment as the user gave it."""
    path = os.pathsep.join(filter(None, (str(_folder()), inherited.get("PYTHONPATH"))))
    return {"PYTHONPATH": path, ENV_RECORD: json.dumps(asdict(settings))}


def _folder() -> Path:
    """Return the recorder's folder. Raises UserError if the shim is not installed."""
    spec = importlib.util.find_spec("torchrelay.shim")
    if spec is None or not spec.submodule_search_locations:
        raise UserError("torchrelay.shim is not installed: nothing can be recorded")
    return Path(next(iter(spec.submodule_search_locations))).resolve() / "recorder"
