"""What is the script's own doing costs no spare."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.cells import only_in_long
from support.relay_run import relay

SCRIPT, RANKS = "module_level.py", 2


@pytest.mark.core
def test_an_exception_of_the_script_ends_the_job_with_its_traceback(tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, environment={"FAIL_IN_STEP": "1:7"})
    assert run.status == 1, run.told()
    assert "ZeroDivisionError: the script's own mistake" in run.stderr
    assert "module_level.py" in run.stderr
    assert "torchrelay/shim" not in run.stderr
    assert run.named("migration_started") == []


@only_in_long
def test_an_injected_exception_ends_the_job_like_one_of_the_script(tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=["raise:rank=1,step=7,phase=forward"])
    assert run.status == 1, run.told()
    assert run.faults() == ["raise:rank=1,step=7,phase=forward"]
    assert "RuntimeError: injected by torchrelay" in run.stderr
    assert "Traceback" in run.stderr
    assert run.named("migration_started") == []


def test_an_exit_code_of_the_script_is_the_exit_code_of_the_run(tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, inject=["exit:rank=0,step=5,phase=backward,code=3"])
    assert run.status == 3, run.told()
    assert run.named("migration_started") == []


@only_in_long
def test_a_fault_that_never_fires_makes_the_run_fail(tmp_path: Path) -> None:
    run = relay(tmp_path, SCRIPT, ranks=RANKS, spares=0, inject=["kill:rank=1,step=5000"])
    assert run.status == 76, run.told()
    assert "kill:rank=1,step=5000,phase=forward never fired" in run.stderr
    assert sorted(path.name for path in run.out.iterdir()) == ["rank-0.json", "rank-1.json"]
