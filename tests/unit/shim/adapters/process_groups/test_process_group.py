"""Seen on torch 2.13."""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.nn.parallel import DistributedDataParallel

from torchrelay.protocol.errors import StateMismatchError, UnsupportedError
from torchrelay.shim.adapters.process_groups import process_group as groups
from torchrelay.shim.adapters.process_groups.old_backends import OldBackends
from torchrelay.shim.backends.gloo import Gloo
from torchrelay.shim.backends.registry import unconnected


@pytest.fixture(params=["gloo", None, "cpu:gloo"])
def group(request: pytest.FixtureRequest) -> Iterator[Any]:
    """As scripts ask for it; without a name torch chooses one for the device there is."""
    dist.init_process_group(request.param, store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=77))
    yield c10d._get_default_group()
    dist.destroy_process_group()


def exchange(group: Any, number: int) -> tuple[Any, Any]:
    kind = groups.type_of(20 + number)
    store = dist.HashStore()
    backend = Gloo().new(store, 0, 1, group._get_backend(torch.device("cpu")))
    groups.install(group, dict.fromkeys(groups.device_types(group), (backend, kind)), store)
    return kind, backend


def types(group: Any, kind: Any) -> dict[torch.device, Any]:
    return dict.fromkeys(groups.device_types(group), kind)


def test_the_communicator_inside_a_live_group_is_exchanged_and_the_group_is_still_itself(group: Any) -> None:
    name, before = groups.name_of(group), group._get_backend(torch.device("cpu"))
    declared = dist.get_backend()
    _, backend = exchange(group, 1)
    assert c10d._get_default_group() is group
    assert group._get_backend(torch.device("cpu")) is backend
    assert group._get_backend(torch.device("cpu")) is not before
    assert (groups.name_of(group), dist.get_backend(), dist.get_world_size()) == (name, declared, 1)
    assert groups.backend_name(group) == "gloo"
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    dist.barrier()
    assert tensor.tolist() == [1.0, 1.0]


def test_functional_collectives_by_group_name_follow(group: Any) -> None:
    from torch.distributed import _functional_collectives as functional

    exchange(group, 1)
    assert functional.all_reduce(torch.ones(1), "sum", group).item() == 1.0


def test_an_exchange_can_be_taken_back(group: Any) -> None:
    first_type, first = exchange(group, 1)
    record = groups.record_of(group)
    exchange(group, 2)
    groups.reinstall(group, types(group, first_type), record)
    assert group._get_backend(torch.device("cpu")) is first
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert groups.record_of(group) == record


class Recorded:
    """A group, and what is registered with it."""

    def __init__(self, group: Any) -> None:
        self.group, self.registered = group, list[Any]()

    def _register_backend(self, device: Any, kind: Any, backend: Any) -> None:
        self.registered.append(backend)
        self.group._register_backend(device, kind, backend)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.group, name)


def test_torch_is_given_a_communicator_when_an_exchange_is_taken_back_since_it_reads_from_it(
    group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_type, _ = exchange(group, 1)
    _, second = exchange(group, 2)
    recorded = Recorded(group)
    with monkeypatch.context() as m:
        m.setattr(c10d, "_pg_map", {})  # the recorder is to leave no group behind
        groups.reinstall(recorded, types(group, first_type), ("gloo", None))
    assert recorded.registered == [second] * len(groups.device_types(group))


def test_the_timeout_is_carried_over(group: Any) -> None:
    assert groups.timeout_of(group) == timedelta(seconds=77)
    exchange(group, 1)
    assert groups.timeout_of(group) == timedelta(seconds=77)


def test_the_group_keeps_the_name_of_its_backend_for_whoever_asks_torch(group: Any) -> None:
    before = group._get_backend_name(), group.name(), dist.get_backend(group)
    for number in range(3):
        exchange(group, number)
        assert (group._get_backend_name(), group.name(), dist.get_backend(group)) == before
        assert not group._has_hooks()
        DistributedDataParallel(torch.nn.Linear(2, 2))
    dist.all_reduce(torch.ones(1))


def test_a_number_that_is_used_is_not_given_again_and_all_of_them_run_out() -> None:
    used: list[int] = []
    for _ in range(241):
        used.append(groups.unused_number(used))
    assert len(set(used)) == 241
    with pytest.raises(UnsupportedError, match="no further backend types"):
        groups.unused_number(used)


def held() -> tuple[set[str], set[str]]:
    """What this process has open, and its threads."""
    opened = set()
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # closed since
            opened.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    return opened, set(os.listdir("/proc/self/task"))


def test_old_communicators_are_let_go_of_with_their_threads_and_connections(group: Any) -> None:
    old, name = OldBackends(), group.name()
    gc.collect()  # groups of the tests before this one go with their threads and connections, too
    opened, threads = held()  # what other tests have left may end meanwhile: it does not count
    seen = []
    for number in range(6):
        _, backend = exchange(group, number % 2)
        assert old.forget(group)
        total = torch.ones(2)
        dist.all_reduce(total)
        assert total.tolist() == [1.0, 1.0]
        assert group._get_backend_name() == name
        assert group._get_backend(torch.device("cpu")) is backend
        del backend
        dist.all_reduce(total)
        now = held()
        seen.append((len(now[0] - opened), len(now[1] - threads)))
    assert len(set(seen[1:])) == 1, seen


def test_what_is_no_process_group_of_torch_is_left_alone() -> None:
    class Looks:
        pass

    assert not OldBackends().forget(Looks())


@pytest.mark.parametrize("asked", ["gloo", None, "cpu:gloo"])
def test_a_fake_group_names_itself_as_the_real_one(asked: str | None) -> None:
    dist.init_process_group(asked, store=dist.HashStore(), rank=0, world_size=1)
    name, config, kind = dist.get_backend(), c10d.get_backend_config(), c10d._get_default_group().name()
    real_threads = DistributedDataParallel(torch.nn.Linear(2, 2))._get_ddp_logging_data()["gloo_num_threads"]
    named = [dist.get_backend(dist.new_group([0], backend=other)) for other in (None, "gloo")]
    dist.destroy_process_group()
    groups.init_fake(2, 4, asked, None, dist.init_process_group, unconnected)
    try:
        assert (dist.get_rank(), dist.get_world_size()) == (2, 4)
        assert (dist.get_backend(), c10d.get_backend_config()) == (name, config)
        (group,) = groups.groups()
        assert group.name() == kind
        assert not group._has_hooks()
        assert group._get_backend(torch.device("cpu")).name() == "fake"
        threads = DistributedDataParallel(torch.nn.Linear(2, 2))._get_ddp_logging_data()["gloo_num_threads"]
        assert threads == real_threads > 0
        assert groups.group_ranks(group) == [0, 1, 2, 3]
        for other, real in zip((None, "gloo"), named, strict=True):
            with groups.fakes():
                further = dist.new_group([0, 2], backend="fake")
            groups.name_if_member(further, groups.asked_or_default(other), None, unconnected)
            assert dist.get_backend(further) == real
    finally:
        dist.destroy_process_group()


def test_a_group_that_a_process_makes_once_it_is_a_rank_names_itself_as_its_peers_do() -> None:
    groups.init_fake(0, 2, "gloo", None, dist.init_process_group, unconnected)
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert dist.new_group([0], backend="cpu:gloo").name() == "gloo"
        assert "fake" not in dist.Backend.default_device_backend_map.values()
    finally:
        dist.destroy_process_group()


def test_a_joiner_is_a_member_of_the_groups_that_the_lost_rank_was_in_under_their_names() -> None:
    groups.init_fake(2, 4, "gloo", None, dist.init_process_group, unconnected)
    try:
        with groups.fakes():
            early = dist.new_group([1, 2], backend="fake")
        groups.name_if_member(early, "gloo", None, unconnected)
        groups.name_from(5)
        with groups.fakes():
            late = dist.new_group([0, 2], backend="fake", group_desc="late")
        groups.name_if_member(late, "gloo", None, unconnected)
        assert groups.name_of(late) == "5"
        default = next(d for d in groups.described() if d[0] == groups.name_of(c10d._get_default_group()))
        wanted = (default, ("3", (2, 3), "gloo", "passed over"), ("5", (0, 2), "gloo", "late"))
        groups.be_member_of(wanted, unconnected)
        assert groups.described() == tuple(sorted(wanted))
        assert dist.get_rank(groups.named("3")[0]) == 0
        assert groups.named("3")[0].name() == "gloo"
        with pytest.raises(StateMismatchError, match="process group '5' has ranks"):
            groups.be_member_of((default, ("5", (1, 2), "gloo", "late")), unconnected)
    finally:
        dist.destroy_process_group()


def test_devices_with_other_backends_are_named_each() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        group = c10d._get_default_group()
        c10d._world.pg_backend_config[group] = "cpu:gloo,cuda:nccl"
        assert groups.backend_name(group) == "cpu:gloo,cuda:nccl"
        assert groups.backend_names(group) == {"cpu": "gloo", "cuda": "nccl"}
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", ["_register_backend", "_set_default_backend", "BackendType"])
def test_a_torch_without_a_private_name_is_refused_by_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    groups.check_supported()
    monkeypatch.delattr(dist.ProcessGroup, name)
    with pytest.raises(UnsupportedError, match=f"torch {torch.__version__}".replace("+", r"\+") + f" lacks {name}"):
        groups.check_supported()


def test_a_group_on_the_fake_backend_communicates_with_nobody() -> None:
    with groups.fakes() as store:
        dist.init_process_group("fake", store=store(), rank=0, world_size=2)
    try:
        assert groups.groups() == []
    finally:
        dist.destroy_process_group()
