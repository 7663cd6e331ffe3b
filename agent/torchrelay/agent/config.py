"""The agent's configuration: one JSON file, written by the process that starts the agent."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchrelay.agent.output_streams import parse_streams
from torchrelay.protocol.errors import FrameError, UserError
from torchrelay.protocol.messages import Program
from torchrelay.protocol.names import MADE_FILES, Rank, WorkerId
from torchrelay.protocol.options.faults import parse_fault
from torchrelay.protocol.options.handed_on import AgentOptions
from torchrelay.protocol.options.numbers import parse_watch
from torchrelay.protocol.security.transfer_protection import INTEGRITY
from torchrelay.protocol.transport.wire import field_types, from_plain


@dataclass(frozen=True, kw_only=True)
class AgentConfig(AgentOptions):
    """The keys of the configuration file, with those of AgentOptions. Keys with a default may be left out.

    `check_steps`: ranks stand still for good after this many steps, and write into `made_files_path` which files they make.
    `command`: script and arguments (`-m module` too), run by `python -u`; with an empty `python` it is the whole argv.
    `host`: the address under which this node's tensor channels are reachable. `controller`: HOST:PORT.
    `tee`, `redirects`, `log_dir`: as torchrun's flags. `resume`: all processes start as spares.
    `machine`: a folder for a fake machine, to which faults of devices are given; empty: the real one is watched.
    `number_watches`: as `--watch` takes them.
    `watched`: folders of checkpoints and flight recorder dumps. `notices`: files that say, while they exist, that this machine has
    to go.
    `grace_s`: time between the signal that ends the job and SIGKILL.
    `controller_file`: the file in which the controller says who it is, if it runs on this machine.
    `orphan_s`: after this long without a controller, ranks that are done may leave, and the node ends by the rules of torchrun.
    """

    run_id: str
    node: str
    nnodes: int
    nproc_per_node: int
    command: tuple[str, ...]
    host: str
    controller: str
    secret_file: str
    run_dir: str
    journal_dir: str
    master_addr: str
    master_port: int
    python: str = ""
    inject: tuple[str, ...] = ()
    resume: bool = False
    parks: bool = False
    """Ranks wait in front of their scripts until the controller lets them begin, see ControllerConfig.parks_scripts."""
    tee: str = "0"
    redirects: str = "0"
    log_dir: str = ""
    machine: str = ""
    watched: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    number_watches: tuple[str, ...] = ()
    protection: str = INTEGRITY
    """How tensors that go to another machine are protected."""
    controller_file: str = ""
    candidate: str = ""
    """HOST:PORT of a controller that the command of this machine starts when it has to."""
    metrics_host: str = "127.0.0.1"
    metrics_port: int = 0
    """The port that answers Prometheus; 0: none."""
    program: Program = field(default_factory=Program)
    """What this machine was told to run; the controller compares it with the others'."""
    grace_s: float = 30.0
    orphan_s: float = 60.0

    @property
    def world_size(self) -> int:
        return self.nnodes * self.nproc_per_node

    @property
    def argv(self) -> list[str]:
        return [self.python, "-u", *self.command] if self.python else list(self.command)

    @property
    def socket_path(self) -> Path:
        return Path(self.run_dir) / f"agent-{self.node}.sock"

    @property
    def kept_path(self) -> Path:
        """The folder where ranks of this node keep copies of their state."""
        return Path(self.journal_dir) / f"kept-{self.node}"

    @property
    def made_files_path(self) -> Path:
        return Path(self.run_dir) / MADE_FILES

    def workers(self) -> dict[WorkerId, Rank | None]:
        """Return every process of this node, with the rank that it starts with; None for a spare."""
        ranks: dict[WorkerId, Rank | None] = {}
        for i in range(self.nproc_per_node):
            rank = None if self.resume or self.joins else Rank(self.node_rank * self.nproc_per_node + i)
            ranks[WorkerId(f"{self.node}.w{i}")] = rank
        return ranks | {WorkerId(f"{self.node}.s{i}"): None for i in range(self.spares)}


def load_config(path: Path) -> AgentConfig:
    """Read the configuration. Raises UserError for a file that cannot be read or does not fit."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as e:
        raise UserError(f"the agent's configuration {path} cannot be read: {e}") from e
    if not isinstance(values, dict):
        raise UserError(f"the agent's configuration {path} is no JSON object")
    hints = field_types(AgentConfig)
    if unknown := sorted(set(values) - set(hints)):
        raise UserError(f"{path}: unknown key {', '.join(unknown)}; known are {', '.join(hints)}")
    needed = {
        f.name
        for f in dataclasses.fields(AgentConfig)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    if missing := sorted(needed - set(values)):
        raise UserError(f"{path}: {', '.join(missing)} is missing")
    config = AgentConfig(**{k: _value(path, k, hints[k], v) for k, v in values.items()})
    _check(path, config)
    return config


def _value(path: Path, key: str, hint: Any, value: Any) -> Any:
    if hint == tuple[str, ...] and isinstance(value, list) and all(isinstance(v, str) for v in value):
        return tuple(value)
    if hint is Program:
        try:
            return from_plain(Program, value)
        except FrameError as e:
            raise UserError(f"{path}: {key}: {e}") from e
    if hint is float and type(value) is int:
        return float(value)
    if hint in (str, int, bool, float) and type(value) is hint:
        return value
    raise UserError(f"{path}: {key} cannot be {value!r}")


def _check(path: Path, config: AgentConfig) -> None:
    if config.nnodes < 1 or config.nproc_per_node < 1 or config.spares < 0:
        raise UserError(f"{path}: nnodes and nproc_per_node start at 1, spares at 0")
    if not 0 <= config.node_rank < config.nnodes:
        raise UserError(f"{path}: node_rank {config.node_rank} is not within 0 to {config.nnodes - 1}")
    if not config.argv:
        raise UserError(f"{path}: command is empty")
    for text in config.inject:
        if parse_fault(text, config.world_size).is_of_a_device and not config.machine:
            raise UserError(f"{path}: {text} is a fault of a device, and machine names no folder for a fake one")
    for text in config.number_watches:
        parse_watch(text)
    parse_streams("tee", config.tee)
    parse_streams("redirects", config.redirects)
