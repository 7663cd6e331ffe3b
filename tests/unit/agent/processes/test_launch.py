"""What each training process gets: the environment of torchrun, and what its shim needs."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchrelay.agent.config import AgentConfig
from torchrelay.agent.processes.launch import shim_folders, worker_specs
from torchrelay.protocol import names

CONFIG = AgentConfig(
    run_id="r",
    node="n1",
    node_rank=1,
    nnodes=2,
    nproc_per_node=2,
    spares=1,
    command=("train.py",),
    host="10.0.0.2",
    controller="10.0.0.1:29476",
    secret_file="secret",
    run_dir="/run/r",
    journal_dir="/dev/shm/r",
    master_addr="10.0.0.1",
    master_port=29500,
    python="python3",
    inject=("kill:rank=3,step=2", "stop:rank=3,step=5,phase=gate", "kill:rank=0,step=1"),
)


def environments(environ: dict[str, str], **changes: Any) -> dict[str, dict[str, str]]:
    return {s.worker: s.env for s in worker_specs(dataclasses.replace(CONFIG, **changes), environ)}


def test_a_rank_gets_what_torchrun_sets() -> None:
    env = environments({"PATH": "/bin", "RANK": "of an outer job"}, role="trainer")["n1.w1"]
    assert {k: v for k, v in env.items() if "TORCHRELAY" not in k and k not in ("PYTHONPATH",)} == {
        "PATH": "/bin",
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_RANK": "3",
        "ROLE_NAME": "trainer",
        "ROLE_WORLD_SIZE": "4",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "r",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": "/run/r/n1.w1-error.json",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": names.HASH_SEED,
    }


def test_a_rank_whose_script_is_to_wait_has_its_rank_all_the_same() -> None:
    waits, begins = (environments({}, parks=parks)["n1.w1"] for parks in (True, False))
    assert waits.pop(names.ENV_SPARE) == "1"
    differ = {name for name in begins if waits.get(name) != begins[name]}
    assert differ == {names.ENV_TOKEN}  # a new one each time


def test_what_the_user_has_set_stays_as_with_torchrun() -> None:
    env = environments({"OMP_NUM_THREADS": "8", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"})["n1.w0"]
    assert (env["OMP_NUM_THREADS"], env["TORCH_NCCL_ASYNC_ERROR_HANDLING"]) == ("8", "0")
    assert "OMP_NUM_THREADS" not in environments({}, nproc_per_node=1, inject=())["n1.w0"]


def test_a_spare_has_no_rank_but_the_same_number_of_threads() -> None:
    env = environments({"RANK": "9", "MASTER_ADDR": "elsewhere"})["n1.s0"]
    assert env[names.ENV_SPARE] == "1"
    assert env["OMP_NUM_THREADS"] == "1"
    assert not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", names.ENV_INJECT} & set(env)


@pytest.mark.parametrize(("theirs", "ours"), [(None, ""), ("random", "random"), ("7", None)])
def test_sets_of_strings_have_one_order_in_all_processes_unless_the_user_has_chosen(
    theirs: str | None, ours: str | None
) -> None:
    environ = {} if theirs is None else {"PYTHONHASHSEED": theirs}
    for env in environments(environ).values():
        assert env["PYTHONHASHSEED"] == (names.HASH_SEED if ours is not None else theirs)
        assert env.get(names.ENV_HASH_SEED_WAS) == ours


def test_every_process_has_its_own_token_and_journal_and_the_ranks_their_faults() -> None:
    all_of_them = environments({names.ENV_SECRET: "never for the script", names.ENV_SPARE: "1"})
    assert len({env[names.ENV_TOKEN] for env in all_of_them.values()}) == 3
    assert {w: env[names.ENV_JOURNAL] for w, env in all_of_them.items()} == {w: f"/dev/shm/r/{w}" for w in all_of_them}
    assert {w: env.get(names.ENV_INJECT) for w, env in all_of_them.items()} == {
        "n1.w0": None,
        "n1.w1": "kill:rank=3,step=2,phase=forward;stop:rank=3,step=5,phase=gate",
        "n1.s0": None,
    }
    assert all(names.ENV_SECRET not in env for env in all_of_them.values())
    assert names.ENV_SPARE not in all_of_them["n1.w0"]
    assert all_of_them["n1.w0"][names.ENV_SOCKET] == "/run/r/agent-n1.sock"
    assert all_of_them["n1.w0"][names.ENV_ADDRESS] == "10.0.0.2"


@pytest.mark.parametrize("before", [None, "", "/a:/b"])
def test_the_shim_comes_first_on_the_path_and_the_old_path_is_kept(before: str | None) -> None:
    env = environments({} if before is None else {"PYTHONPATH": before})["n1.w0"]
    site, _ = shim_folders()
    assert env["PYTHONPATH"] == (f"{site}{os.pathsep}{before}" if before else str(site))
    assert env.get(names.ENV_PYTHONPATH_WAS) == before


def test_the_roots_hold_shim_and_protocol() -> None:
    site, roots = shim_folders()
    for part in ("shim", "protocol"):
        assert any((root / "torchrelay" / part / "__init__.py").is_file() for root in roots)
    assert site == Path(next(r for r in roots if (r / "torchrelay" / "shim").is_dir())) / "torchrelay" / "shim" / "site"


def test_the_shim_is_found_without_being_imported() -> None:
    code = "import sys; from torchrelay.agent.processes.launch import shim_folders; shim_folders(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "torchrelay.agent.processes.launch" in loaded
    assert not [m for m in loaded if m == "torch" or m.startswith("torchrelay.shim")]
