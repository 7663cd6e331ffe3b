from __future__ import annotations

from torchrelay.protocol.launch_env import TORCHRUN_NAMES, common_env, torchrun_env


def test_ranks_are_counted_as_torchrun_does() -> None:
    env = torchrun_env(5, world_size=8, nproc_per_node=4, master_addr="10.0.0.1", master_port=29500, run_id="r")
    assert tuple(env) == TORCHRUN_NAMES
    assert env == {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "5",
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": "8",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "r",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }


def test_threads_are_limited_only_where_processes_share_a_machine_and_nobody_has_said() -> None:
    assert common_env({}, 2) == {"OMP_NUM_THREADS": "1"}
    assert common_env({}, 1) == {}
    assert common_env({"OMP_NUM_THREADS": "8"}, 2) == {}
