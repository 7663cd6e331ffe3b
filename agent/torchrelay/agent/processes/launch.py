"""The command and the environment of each training process."""

from __future__ import annotations

import importlib.util
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchrelay.agent.config import AgentConfig
from torchrelay.agent.processes.fault_book import FaultBook
from torchrelay.protocol import names
from torchrelay.protocol.errors import FatalError
from torchrelay.protocol.launch_env import TORCHRUN_NAMES, common_env, torchrun_env
from torchrelay.protocol.names import Rank, WorkerId
from torchrelay.protocol.options.cost_limit import MOST_SHARE_PERCENT
from torchrelay.protocol.security.transfer_protection import INTEGRITY

_USERS_CHOICE = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
"""The one name that torchrun sets only where the user has not."""


@dataclass(frozen=True)
class WorkerSpec:
    """One process to start. A spare has no rank; `token` is what its Hello must show; `name` names its log folder."""

    worker: WorkerId
    rank: Rank | None
    local_rank: int | None
    name: str
    argv: list[str]
    env: dict[str, str]
    token: str
    journal: Path


def worker_specs(config: AgentConfig, environ: Mapping[str, str]) -> list[WorkerSpec]:
    """Return all processes of this node. `environ` is the user's, without what the agent sets for itself."""
    specs = []
    for worker, rank in config.workers().items():
        local_rank = None if rank is None else rank % config.nproc_per_node
        kind = worker.split(".")[1][0]
        number = worker.split(".")[1][1:]
        name = f"spare{number}" if kind == "s" else number
        specs.append(_spec(config, environ, worker, rank, local_rank, name))
    return specs


def late_rank_spec(config: AgentConfig, environ: Mapping[str, str], number: int) -> WorkerSpec:
    """Return the spec of a further process for one rank, in the middle of the job. It starts as a spare."""
    return _spec(config, environ, WorkerId(f"{config.node}.r{number}"), None, None, f"again{number}")


def rehearser_spec(config: AgentConfig, environ: Mapping[str, str], number: int) -> WorkerSpec:
    """Return the spec of a process that rehearses: it waits as a spare does, and is never given a rank."""
    return _spec(config, environ, WorkerId(f"{config.node}.t{number}"), None, None, f"rehearsal{number}")


def late_spare_spec(config: AgentConfig, environ: Mapping[str, str], number: int) -> WorkerSpec:
    """Return the spec of a further spare, counted on from those that the job began with."""
    number += config.spares
    return _spec(config, environ, WorkerId(f"{config.node}.s{number}"), None, None, f"spare{number}")


def _spec(
    config: AgentConfig,
    environ: Mapping[str, str],
    worker: WorkerId,
    rank: Rank | None,
    local_rank: int | None,
    name: str,
) -> WorkerSpec:
    token = secrets.token_hex(32)
    journal = Path(config.journal_dir) / worker
    env = _environment(config, environ, worker, rank, token, journal)
    return WorkerSpec(worker, rank, local_rank, name, config.argv, env, token, journal)


def _environment(
    config: AgentConfig, environ: Mapping[str, str], worker: WorkerId, rank: Rank | None, token: str, journal: Path
) -> dict[str, str]:
    own = {*TORCHRUN_NAMES, *names.SHIM_ENV, names.ENV_SECRET} - {_USERS_CHOICE}
    env = {k: v for k, v in environ.items() if k not in own}
    env |= common_env(environ, config.nproc_per_node)
    site, roots = shim_folders()
    if (pythonpath := environ.get("PYTHONPATH")) is not None:
        env[names.ENV_PYTHONPATH_WAS] = pythonpath
    env["PYTHONPATH"] = os.pathsep.join(filter(None, (str(site), pythonpath)))
    env |= {
        names.ENV_SOCKET: str(config.socket_path),
        names.ENV_WORKER: worker,
        names.ENV_TOKEN: token,
        names.ENV_JOURNAL: str(journal),
        names.ENV_ADDRESS: config.host,
        names.ENV_ROOTS: os.pathsep.join(map(str, roots)),
        "TORCHELASTIC_ERROR_FILE": str(Path(config.run_dir) / f"{worker}-error.json"),
    }
    if environ.get(names.HASH_SEED_VARIABLE, "random") in ("", "random"):
        env |= {
            names.HASH_SEED_VARIABLE: names.HASH_SEED,
            names.ENV_HASH_SEED_WAS: environ.get(names.HASH_SEED_VARIABLE, ""),
        }
    if config.buddy_every:
        env |= {names.ENV_BUDDY_EVERY: str(config.buddy_every), names.ENV_KEPT: str(config.kept_path)}
        if config.buddy_sync:
            env[names.ENV_BUDDY_SYNC] = "1"
    if config.number_watches:
        env[names.ENV_WATCH] = ";".join(config.number_watches)
    env |= {name: environ[name] for name in (names.ENV_ENTROPY, names.ENV_LOG) if environ.get(name)}
    if config.cost_limit_percent != MOST_SHARE_PERCENT:
        env[names.ENV_COST_LIMIT] = f"{config.cost_limit_percent:g}"
    if config.protection != INTEGRITY:
        env[names.ENV_TRANSFER] = config.protection
    if config.check_steps:
        env |= {
            names.ENV_HOLD_AT: str(config.check_steps),
            names.ENV_MADE_FILES: str(config.made_files_path),
            names.ENV_CUT_LOADERS: str(config.check_batches),
            names.ENV_CHECK: "1",
        }
    if rank is None:
        return env | {names.ENV_SPARE: "1"}
    env |= torchrun_env(
        rank,
        world_size=config.world_size,
        nproc_per_node=config.nproc_per_node,
        master_addr=config.master_addr,
        master_port=config.master_port,
        run_id=config.run_id,
        restarts=config.scripts_begun,
    )
    env |= node_env(config, environ)
    if config.parks:
        env[names.ENV_SPARE] = "1"
    return env | FaultBook(config.inject).environment(rank)


def node_env(config: AgentConfig, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables in which this node's user or flags differ from what `torchrun_env` can know; for a joiner too."""
    chosen = {_USERS_CHOICE: environ[_USERS_CHOICE]} if _USERS_CHOICE in environ else {}
    return chosen | {"ROLE_NAME": config.role}


def shim_folders() -> tuple[Path, list[Path]]:
    """Return the folder with the shim's sitecustomize, and the roots under which shim and protocol are found.

    Neither is imported here: the shim is for the training process alone. Raises FatalError if one is not installed.
    """
    packages = [_package_folder(f"torchrelay.{part}") for part in ("shim", "protocol")]
    roots = list(dict.fromkeys(folder.parent.parent for folder in packages))
    return packages[0] / "site", roots


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise FatalError(f"{package} is not installed beside the agent")
    return Path(next(iter(spec.submodule_search_locations))).resolve()
