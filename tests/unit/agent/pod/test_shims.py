"""Who may speak to the agent of a pod: whoever knows the token that it has drawn, and is of the pod's users."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
from support.pod_node_world import World

from torchrelay.agent.connections import shim_server
from torchrelay.agent.connections.shim_server import ShimEvents
from torchrelay.agent.pod.shims import PodShims, shim_token
from torchrelay.protocol import messages as msg
from torchrelay.protocol.errors import UserError

OWN, TRAINING, OTHER = os.getuid() or 65532, 1000, 1001


def nothing(*told: Any) -> None:
    pass


def shims(folder: Path, training_user: int | None = None) -> PodShims:
    return PodShims(folder / "s", "n", "t", ShimEvents(nothing, nothing), folder / "names", training_user=training_user)


def test_the_token_is_drawn_and_outlives_the_agent_but_not_the_pod(tmp_path: Path) -> None:
    path, elsewhere = tmp_path / "token", tmp_path / "other"
    token = shim_token(path)
    assert len(token) == 64
    assert shim_token(path) == token
    assert shim_token(elsewhere) != token
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    path.write_text("cut off")
    assert len(shim_token(path)) == 64


def test_a_token_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be written"):
        shim_token(tmp_path / "nowhere" / "token")


def test_what_everybody_may_read_of_the_pod_is_no_token(in_world: Any) -> None:
    async def test(w: World) -> None:
        shim = await w.shim(token=w.config.uid)
        with pytest.raises(EOFError):
            await shim.hear()
        assert w.session.of(msg.WorkerStarted) == []

    in_world(test)


def test_the_user_that_the_pod_names_may_speak_and_no_other(tmp_path: Path) -> None:
    named = shims(tmp_path, TRAINING)
    assert [named.may_connect(user) for user in (0, os.getuid(), TRAINING, OTHER)] == [True, True, True, False]


@pytest.mark.parametrize("said", [None, 0])
def test_of_an_image_s_own_user_the_first_one_with_the_token_counts(tmp_path: Path, said: int | None) -> None:
    unnamed = shims(tmp_path, said)
    assert unnamed.may_connect(TRAINING)
    assert unnamed.may_connect(OTHER)
    unnamed.accepted(0)
    unnamed.accepted(TRAINING)
    assert unnamed.may_connect(TRAINING)
    assert not unnamed.may_connect(OTHER)
    assert unnamed.may_connect(0)


def test_another_user_with_the_token_is_turned_away(in_world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(w: World) -> None:
        monkeypatch.setattr(shim_server, "_peer", lambda sock: (1, TRAINING, TRAINING))
        first = await w.shim()
        assert isinstance(await first.hear(), msg.Ack)
        monkeypatch.setattr(shim_server, "_peer", lambda sock: (2, OTHER, OTHER))
        second = await w.shim(launch={"RANK": "0", "WORLD_SIZE": "2"})
        with pytest.raises((EOFError, ConnectionError)):
            await second.hear()
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        assert len(w.session.of(msg.WorkerStarted)) == 1

    in_world(test)
