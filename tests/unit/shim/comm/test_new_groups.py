from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch.distributed as dist

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError
from torchrelay.protocol.logs.log_lines import LogLines, LogPart
from torchrelay.shim.adapters.process_groups import process_group
from torchrelay.shim.comm.collective_call import CollectiveCall
from torchrelay.shim.comm.collectives import DEFAULT_GROUP
from torchrelay.shim.comm.generations.communicators import Communicators
from torchrelay.shim.comm.new_groups import NewGroups


class Played:
    """Collectives of a rank that is alone, as `mode` says; `between` is a migration that an interruption leads to."""

    def __init__(self, mode: str = "repeat", between: Callable[[], bool] = lambda: False) -> None:
        self.mode, self.between = mode, between
        self.calls: list[tuple[str, str]] = []

    def sees_calls(self) -> bool:
        return self.mode != "off"

    def is_answering(self) -> bool:
        return self.mode == "answer"

    def call(self, call: CollectiveCall) -> Any:
        self.calls.append((call.name, call.group))
        while self.mode != "answer":
            try:
                return call.function()
            except RuntimeError:
                if self.between():
                    return None  # others have finished it
        return None


@pytest.fixture
def comms() -> Iterator[Communicators]:
    found = Communicators(0, 1, "127.0.0.1", LogLines(LogPart.SHIM))
    found.now.stores.append(dist.HashStore())
    yield found
    if dist.is_initialized():
        dist.destroy_process_group()


def new_groups(comms: Communicators, played: Played) -> NewGroups:
    return NewGroups(played, comms, lambda error: not isinstance(error, UnsupportedError))  # type: ignore[arg-type]  # as much of them as it uses


def failing(times: int) -> Callable[..., None]:
    """`init_process_group` whose peers are lost so many times. What communicates with nobody is made at once."""
    left = [times]

    def init(backend: str | None = None, **kwargs: Any) -> None:
        if "fake" not in str(backend) and left[0]:
            left[0] -= 1
            raise RuntimeError("Connection closed by peer")
        dist.init_process_group(backend, **kwargs)

    return init


def test_a_further_default_group_has_the_first_ones_name_and_its_members_meet_in_a_store_of_ours(
    comms: Communicators,
) -> None:
    played = Played()
    making = new_groups(comms, played)
    for number in (1, 2):
        making.make_default(dist.init_process_group, "gloo", init_method="env://")
        assert process_group.name_of(dist.group.WORLD) == "0"
        assert comms.now.defaults == number
        dist.destroy_process_group()
    assert played.calls == [(DEFAULT_GROUP, "0")] * 2


def test_an_interrupted_group_is_made_anew_where_nobody_has_finished_it(comms: Communicators) -> None:
    seen = []

    def between() -> bool:
        seen.append(process_group.group_names().names)
        return False

    new_groups(comms, Played(between=between)).make_default(failing(2), "gloo")
    assert seen == [{"0"}, {"0"}], "what ranks come together with is a group without peers"
    assert process_group.backend_name(dist.group.WORLD) == "gloo"
    assert comms.now.defaults == 3


def test_an_interrupted_group_that_others_have_finished_is_the_one_that_was_connected(comms: Communicators) -> None:
    new_groups(comms, Played(between=lambda: True)).make_default(failing(1), "gloo")
    assert process_group.declared_backend(dist.group.WORLD) == "gloo"


def test_an_interrupted_group_that_could_not_be_connected_is_none(comms: Communicators) -> None:
    def between() -> bool:
        comms.now.incomplete = frozenset({"0"})
        return True

    with pytest.raises(StateMismatchError, match="this one was interrupted in"):
        new_groups(comms, Played(between=between)).make_default(failing(1), "gloo")
    assert not dist.is_initialized()


def test_a_rank_whose_peer_is_lost_before_it_has_called_does_not_wait_for_it() -> None:
    comms = Communicators(0, 2, "127.0.0.1", LogLines(LogPart.SHIM))
    comms.now.stores.append(dist.HashStore())
    interrupted = []

    def between() -> bool:
        interrupted.append(True)
        comms.now.incomplete = frozenset({"0"})
        return True

    breaker = threading.Thread(target=comms.now.breaks)
    breaker.start()
    with pytest.raises(StateMismatchError, match="this one was interrupted in"):
        new_groups(comms, Played(between=between)).make_default(dist.init_process_group, "gloo")
    breaker.join()
    assert interrupted
    assert not dist.is_initialized()


def test_a_process_that_is_answered_has_a_group_without_peers(comms: Communicators) -> None:
    making = new_groups(comms, Played("answer"))
    making.make_default(dist.init_process_group, "gloo")
    assert dist.is_initialized()
    assert comms.now.defaults == 0


def test_a_script_that_goes_on_after_a_failure_of_its_own_has_no_group(comms: Communicators) -> None:
    def between() -> bool:
        raise RuntimeError("Connection refused")

    with pytest.raises(RuntimeError, match="refused"):
        new_groups(comms, Played(between=between)).make_default(failing(1), "gloo")
    assert not dist.is_initialized()


def test_a_group_that_cannot_be_migrated_stays_where_training_goes_on_without_protection(comms: Communicators) -> None:
    class Refusing(Played):
        def call(self, call: CollectiveCall) -> Any:
            super().call(call)
            raise UnsupportedError("the process group uses something else")

    with pytest.raises(UnsupportedError):
        new_groups(comms, Refusing()).make_default(dist.init_process_group, "gloo")
    assert dist.is_initialized()


@pytest.mark.parametrize(
    ("asked", "same"),
    [({}, True), ({"rank": 0, "world_size": 1}, True), ({"rank": 1, "world_size": 2}, False), ({"rank": -1}, True)],
)
def test_ranks_of_another_number_are_other_ranks(
    asked: dict[str, int], same: bool, comms: Communicators, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert new_groups(comms, Played()).has_same_ranks(("gloo",), dict(asked)) is same


def test_a_group_that_was_not_connected_may_only_be_finished_with(comms: Communicators) -> None:
    making = new_groups(comms, Played())
    comms.now.incomplete = frozenset({"3"})
    making.check_incomplete({"3": ["a barrier"]})
    with pytest.raises(StateMismatchError, match="does not have process group '3'"):
        making.check_incomplete({"3": []})
