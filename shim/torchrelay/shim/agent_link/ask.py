"""How a process begins that its agent did not start: it waits for the agent, and asks what it is to be.

A pod that its owner has made again has the environment of a rank that may live elsewhere by now; only the controller knows.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import time

from torchrelay.protocol.errors import ChannelClosedError, RefusedError, TorchrelayError
from torchrelay.protocol.kube.gpu_selection import selection_of
from torchrelay.protocol.messages import Begin, EndNow, Hello
from torchrelay.protocol.names import OVER_FILE
from torchrelay.shim.agent_link.config import ShimConfig
from torchrelay.shim.agent_link.link import AgentLink

AGENT_S = 60.0
"""For the agent's container to start, which may be after this one."""
ANSWER_S = 60.0
POLL_S = 0.05


def ask(config: ShimConfig, agent_s: float = AGENT_S, answer_s: float = ANSWER_S) -> tuple[ShimConfig, AgentLink]:
    """Return the configuration as the controller wants it, and the link.

    Raises OSError or TorchrelayError without an answer.
    """
    hello = Hello(
        config.worker,
        config.token,
        os.getpid(),
        platform.python_version(),
        config.spare,
        launch=config.launch,
        gpus=selection_of(os.environ),
    )
    link = _connect(config, hello, agent_s)
    try:
        begin = _first_word(link, answer_s)
        if begin.refusal:
            raise RefusedError(begin.refusal)
    except TorchrelayError:
        link.close()
        raise
    kept = begin.kept or config.kept
    return dataclasses.replace(config, worker=begin.worker, journal=begin.journal, spare=begin.spare, kept=kept), link


def ask_for_launcher(config: ShimConfig) -> Begin:
    """Return how this process, which starts training processes, is to begin. Raises OSError or TorchrelayError."""
    hello = Hello(config.worker, config.token, os.getpid(), platform.python_version(), False, launcher=True)
    link = _connect(config, hello, AGENT_S)
    try:
        return _first_word(link, ANSWER_S)
    finally:
        link.close()


def _first_word(link: AgentLink, within_s: float) -> Begin:
    try:
        begin = link.first_order(within_s)
    except ChannelClosedError as e:
        raise RefusedError(f"nobody said within {within_s:.0f} s what this process is to be: {e}") from e
    if isinstance(begin, EndNow):
        os._exit(begin.exit_code)  # its job is over
    if not isinstance(begin, Begin):
        raise RefusedError(f"the agent sent {type(begin).__name__} where Begin was due")
    return begin


def token_of(config: ShimConfig) -> str:
    """Return what this process shows to its agent, which writes it down before it listens. Raises OSError."""
    if not config.token_file:
        return config.token
    with open(config.token_file) as file:
        return file.read()


def _connect(config: ShimConfig, hello: Hello, within_s: float) -> AgentLink:
    until_s = time.monotonic() + within_s
    while True:
        try:
            return AgentLink.connect(config.socket, dataclasses.replace(hello, token=token_of(config)))
        except (FileNotFoundError, ConnectionRefusedError):
            if hello.spare:
                _end_if_over(config.socket)
            if time.monotonic() >= until_s:
                raise
            time.sleep(POLL_S)  # nothing else tells of another container's socket


def _end_if_over(path: str) -> None:
    """End this process, which was to be parked, if the job has ended while it was started."""
    with contextlib.suppress(OSError, ValueError), open(os.path.join(os.path.dirname(path), OVER_FILE)) as file:
        os._exit(int(file.read()))
