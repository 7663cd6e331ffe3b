"""What a step binds anew, and objects that are reached in more ways than one."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.cells import few
from support.relay_run import assert_unharmed, relay

RANKS = 2


@pytest.mark.slow
@pytest.mark.parametrize("fault", few(1, ["kill:rank=0,step=8,phase=backward", "kill:rank=1,step=12,phase=gate"]))
def test_buffers_that_the_step_binds_anew_go_back_with_it(fault: str, undisturbed: Undisturbed, tmp_path: Path) -> None:
    run = relay(tmp_path, "bound_anew.py", ranks=RANKS, inject=[fault])
    assert_unharmed(run, undisturbed("bound_anew.py", ranks=RANKS), RANKS, [fault], 1)
