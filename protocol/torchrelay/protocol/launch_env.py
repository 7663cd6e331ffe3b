"""The environment that torchrun gives a script, computed in one place for launcher and joiner."""

from __future__ import annotations

from collections.abc import Mapping

USE_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Whether the store at MASTER_ADDR is hosted by another process than rank 0. The shim says so once it is."""
TORCHRUN_NAMES = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "GROUP_WORLD_SIZE",
    "ROLE_RANK",
    "ROLE_NAME",
    "ROLE_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID",
    USE_AGENT_STORE,
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)


def common_env(environ: Mapping[str, str], nproc_per_node: int) -> dict[str, str]:
    """Return what torchrun sets for every process of a node, also for spares, besides the names above."""
    return {"OMP_NUM_THREADS": "1"} if nproc_per_node > 1 and "OMP_NUM_THREADS" not in environ else {}


def torchrun_env(
    rank: int,
    *,
    world_size: int,
    nproc_per_node: int,
    master_addr: str,
    master_port: int,
    run_id: str,
    restarts: int = 0,
) -> dict[str, str]:
    """Return the variables that torchrun would set, with the same names and meanings. All nodes have equally many ranks."""
    node_rank, local_rank = divmod(rank, nproc_per_node)
    values = (
        rank,
        local_rank,
        world_size,
        nproc_per_node,
        node_rank,
        world_size // nproc_per_node,
        rank,
        "default",
        world_size,
        master_addr,
        master_port,
        restarts,
        restarts,
        run_id,
        False,
        1,
    )
    return dict(zip(TORCHRUN_NAMES, map(str, values), strict=True))
