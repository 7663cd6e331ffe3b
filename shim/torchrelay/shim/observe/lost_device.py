"""A device that fails every call from some call on: an illegal access, an assertion in a kernel, an error of the hardware.

CUDA keeps such an error until the process ends (it is *sticky*), so this process cannot even give its tensors away. Whatever
exception the script or the shim met is a consequence of it. The rank is lost; another process can take over, on this device, too.
"""

from __future__ import annotations

import sys
import traceback
from typing import Protocol

import torch

from torchrelay.protocol.logs.log_lines import LogLines
from torchrelay.shim.agent_link import unfit
from torchrelay.shim.agent_link.link import AgentLink


class RankOfDevice(Protocol):
    """What has to be known of a rank before it ends itself."""

    @property
    def commit(self) -> object | None: ...
    @property
    def way_in(self) -> object | None: ...
    @property
    def shadow(self) -> object | None: ...
    @property
    def link(self) -> AgentLink: ...
    @property
    def log(self) -> LogLines: ...


def failure() -> str:
    """Return why the device that is in use cannot be used any more; empty where it can, or none is in use. Waits for nothing."""
    if not torch.cuda.is_initialized():
        return ""
    first = _error_of_query()
    return f"{_name()} cannot be used any more: {first}" if first and _error_of_query() else ""


def end_if_lost(engine: RankOfDevice, error: BaseException) -> None:
    """End this process if `error` comes of its device. Before the first boundary the failure is the script's own."""
    if engine.commit is None and engine.way_in is None and engine.shadow is None:
        return
    reason = failure()
    if reason:
        traceback.print_exception(error, file=sys.stderr)
        unfit.end(engine.link, engine.log, reason, by_script=True)


def _error_of_query() -> str:
    """Return the error that the device gives now, or nothing. An error that is not sticky is said once."""
    try:
        if not torch.cuda.is_current_stream_capturing():  # to ask would end the capture
            torch.cuda.current_stream().query()
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return ""


def _name() -> str:
    try:
        return f"cuda:{torch.cuda.current_device()}"
    except RuntimeError:
        return "its device"
