"""What a launcher is told."""

from __future__ import annotations

import pytest

from torchrelay.controller.kube.decide import launcher
from torchrelay.controller.kube.decide.launcher import judge_launcher
from torchrelay.controller.restart.job_restart import without_agents_store


@pytest.mark.parametrize(
    ("state", "spare"),
    [
        (launcher.NONE, False),
        (launcher.STARTS, False),
        (launcher.UNPROTECTED, False),
        (launcher.TAKEN_OVER, True),
        (launcher.TRAINS, True),
        (launcher.OVER, True),
        (launcher.BEGINS_AGAIN, True),
    ],
)
def test_a_launcher_begins_or_parks_by_the_state_of_its_job(state: str, spare: bool) -> None:
    assert judge_launcher(state, in_spare=False).spare is spare
    assert judge_launcher(state, in_spare=True).spare


def test_ranks_that_begin_again_meet_in_a_store_of_their_own() -> None:
    env = {"TORCHELASTIC_USE_AGENT_STORE": "True", "MASTER_PORT": "29500", "RANK": "1"}
    assert without_agents_store(env) == {
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "MASTER_PORT": "29501",
        "RANK": "1",
    }
    assert without_agents_store({"MASTER_PORT": "29500"}) == {"MASTER_PORT": "29500"}
