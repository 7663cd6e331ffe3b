"""Everything that torch.distributed offers is recorded, harmless, or refused by name; what a new torch adds shows up here."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from unit.shim.comm.test_collectives import FakeEngine, answer_like

from torchrelay.protocol.errors import UnsupportedError
from torchrelay.shim.adapters.process_groups import process_group
from torchrelay.shim.comm import collectives, group_methods, point_to_point
from torchrelay.shim.comm.collectives import Collectives
from torchrelay.shim.comm.finished import FinishedCollective
from torchrelay.shim.comm.functions import replace
from torchrelay.shim.set_up import stores
from torchrelay.shim.set_up.recording import SetUp

RECORDED = {*collectives._TENSOR_OUT, *collectives._OBJECTS_OUT}
MESSAGES = {*point_to_point._SENDS, *point_to_point._RECEIVES, "batch_isend_irecv"}
GROUPS = {"init_process_group", "destroy_process_group", "new_group", "new_subgroups", "new_subgroups_by_enumeration"}
"""A joiner's are groups without peers; the second and the last two are made of the others."""
MESHES = {"init_device_mesh"}
"""Made of `new_group`."""
REFUSED_BY_GLOO = {"split_group", "shrink_group"}
"""torch does not do them with gloo."""
MEETINGS = {"rendezvous", "register_rendezvous_handler"}
"""A joiner's make a store of its own: see `stores`."""
STANDS_STILL = {"breakpoint"}
HARMLESS = {
    *("GroupName", "get_backend", "get_backend_config", "get_debug_level", "get_default_backend_for_device"),
    *(
        "get_global_rank",
        "get_group_rank",
        "get_node_local_rank",
        "get_pg_count",
        "get_process_group_ranks",
        "get_rank",
    ),
    *(
        "get_world_size",
        "is_available",
        "is_backend_available",
        "is_gloo_available",
        "is_initialized",
        "is_mpi_available",
    ),
    *("is_nccl_available", "is_torchelastic_launched", "is_ucc_available", "is_xccl_available", "record_comm"),
    *("set_debug_level", "set_debug_level_from_env", "supports_complex"),
}
"""They communicate with nobody."""


def functions() -> set[str]:
    offered = {name: vars(dist)[name] for name in vars(dist) if not name.startswith("_") and name != "reduce_op"}
    return {n for n, v in offered.items() if callable(v) and not inspect.isclass(v) and not inspect.ismodule(v)}


def test_every_function_that_torch_offers_is_known() -> None:
    known = RECORDED | MESSAGES | GROUPS | MESHES | REFUSED_BY_GLOO | MEETINGS | STANDS_STILL | HARMLESS
    assert functions() - known == set()


def test_every_method_of_a_group_that_communicates_is_known() -> None:
    """What begins with an underscore, and is none of ours, is for torch itself."""
    about_itself = {
        *(
            "BackendType",
            "CUSTOM",
            "GLOO",
            "MPI",
            "NCCL",
            "UCC",
            "UNDEFINED",
            "XCCL",
            "abort",
            "bound_device_id",
            "boxed",
        ),
        *(
            "get_group_store",
            "group_desc",
            "group_name",
            "merge_remote_group",
            "name",
            "rank",
            "set_timeout",
            "shutdown",
        ),
        *("size", "split_group", "unbox", "use_pg_for_symm_mem_rendezvous"),
    }
    ours = {*group_methods.RESULT_FIRST, *group_methods.BARRIERS, *group_methods.MESSAGES}
    offered = {name for name in dir(dist.ProcessGroup) if not name.startswith("_")}
    assert offered - ours - about_itself == set()


def test_every_method_of_a_store_is_known() -> None:
    about_itself = {"clone", "has_extended_api", "set_timeout", "timeout"}
    assert {name for name in dir(dist.Store) if not name.startswith("_")} - {*stores.ASKED} - about_itself == set()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeEngine]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for name in (*collectives._TENSOR_OUT, *collectives._OBJECTS_OUT, "_coalescing_manager"):
        for module in (c10d, dist):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(module, name))
    for name in (*group_methods.RESULT_FIRST, *group_methods.BARRIERS, *group_methods.MESSAGES):
        if hasattr(dist.ProcessGroup, name):
            monkeypatch.setattr(dist.ProcessGroup, name, getattr(dist.ProcessGroup, name))
    monkeypatch.setattr(dist.Work, "wait", dist.Work.wait)
    engine = FakeEngine()
    installed = Collectives(engine)
    installed.wrap_wait()
    for name, ours in installed.handlers().items():
        replace(engine.guard, name, ours)
    group_methods.install(installed)
    yield engine
    dist.destroy_process_group()


def of_group(call: Callable[[Any], Any]) -> Callable[[], Any]:
    return lambda: call(c10d._get_default_group())


def gathered_by_group(group: Any) -> list[float]:
    parts = [[torch.zeros(2)]]
    group.allgather(parts, [torch.tensor([1.0, 2.0])]).wait()
    return parts[0][0].tolist()


def reduced_together(_: Any) -> list[float]:
    tensors = [torch.ones(1), torch.full((1,), 2.0)]
    with c10d._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    return [t.item() for t in tensors]


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (lambda group: group.monitored_barrier(timedelta(seconds=9)), ["ProcessGroup.monitored_barrier"]),
        (lambda group: group.barrier().wait(), ["ProcessGroup.barrier"]),
        (lambda _: dist.monitored_barrier(), ["monitored_barrier"]),
        (lambda _: dist.barrier(), ["barrier"]),
        (gathered_by_group, ["ProcessGroup.allgather"]),
        (reduced_together, ["all_reduce", "all_reduce"]),
    ],
)
def test_a_call_is_recorded_once_and_answered_without_peers(
    call: Callable[[Any], Any], names: list[str], engine: FakeEngine
) -> None:
    first = call(c10d._get_default_group())
    assert [entry.name for entry in engine.recorded] == names
    answer_like(engine)
    dist.destroy_process_group()
    with process_group.fakes() as store:
        dist.init_process_group("fake", store=store(), rank=0, world_size=2)
    assert call(c10d._get_default_group()) == first
    assert engine.answers == []


def test_tensors_of_a_coalesced_call_are_recorded_when_they_are_there(engine: FakeEngine) -> None:
    tensor = torch.tensor([3.0])
    with c10d._coalescing_manager():
        dist.all_reduce(tensor)
        assert engine.recorded == []
    assert [entry.name for entry in engine.recorded] == ["all_reduce"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_behind_the_gate_a_coalesced_call_is_recorded_once_its_results_are_there(
    asynchronous: bool, engine: FakeEngine
) -> None:
    engine.now = "repeat"
    result = torch.zeros(1)
    with c10d._coalescing_manager(async_ops=asynchronous):
        dist.all_gather_single(result, torch.tensor([3.0]))
        assert engine.recorded == []
    (entry,) = engine.recorded
    engine.replays = [entry]
    again = torch.zeros(1)
    with c10d._coalescing_manager():
        dist.all_gather_single(again, torch.tensor([4.0]))
    assert again.item() == 3.0, "what a peer has recorded is what it had when the call was over"
    assert engine.confirmed == 1


def test_results_of_an_asynchronous_coalesced_call_before_the_gate_are_not_taken_before_they_are_there(
    engine: FakeEngine,
) -> None:
    with c10d._coalescing_manager(async_ops=True) as made:
        dist.all_gather_single(torch.zeros(1), torch.tensor([3.0]))
    made.wait()
    assert [entry.results for entry in engine.recorded] == [None]
    assert engine.confirmed == 0


@pytest.mark.parametrize("mode", ["record", "repeat"])
def test_a_coalesced_call_that_leaves_garbage_is_not_recorded(mode: str, engine: FakeEngine) -> None:
    broken = RuntimeError("Connection closed: generation 0 was broken")
    engine.now, engine.garbage = mode, [broken]
    with pytest.raises(RuntimeError, match="was broken"), c10d._coalescing_manager():
        dist.all_reduce(torch.ones(1))
    assert (engine.for_good, engine.recorded) == ([broken], [])


def test_a_message_sent_by_a_group_itself_is_refused_by_name(engine: FakeEngine) -> None:
    engine.now, engine.answers = "answer", [FinishedCollective("x", "", None)]
    with pytest.raises(UnsupportedError, match=r"ProcessGroup\.send"):
        c10d._get_default_group().send([torch.ones(1)], 0, 0)


class Work:
    """Plays torch's."""

    waited = 0

    def wait(self) -> None:
        self.waited += 1


@pytest.mark.parametrize("name", ["recv", "recv_anysource"])
def test_a_message_received_by_a_group_itself_behind_the_gate_is_confirmed(
    name: str, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Work()
    monkeypatch.setattr(dist.ProcessGroup, name, lambda group, *args: work)
    collectives_now = Collectives(engine)
    monkeypatch.setattr(
        dist.ProcessGroup, name, group_methods._method(collectives_now, name, getattr(dist.ProcessGroup, name))
    )
    receive = getattr(c10d._get_default_group(), name)
    assert receive([torch.ones(1)], 0, 0) is work
    assert engine.confirmed == 0
    broken = RuntimeError("Connection closed: generation 0 was broken")
    engine.now, engine.garbage = "repeat", [broken]
    with pytest.raises(RuntimeError, match="was broken"):
        receive([torch.ones(1)], 0, 0)
    assert (engine.for_good, work.waited) == ([broken], 1)
    assert receive([torch.ones(1)], 0, 0).is_completed()


# Stores.


def use_of_a_store(rank: int, port: int) -> list[Any]:
    store = dist.TCPStore("127.0.0.1", port, is_master=rank == 0, wait_for_workers=False)
    prefixed = dist.PrefixStore("mine", store)
    return [
        store.add("count", 1),
        prefixed.set("key", "value"),
        prefixed.get("key"),
        store.check(["nothing"]),
        prefixed.wait(["key"]),
        store.compare_set("new", "", "first"),
        store.delete_key("new"),
    ]


def test_a_joiner_asks_no_store_and_has_the_same_answers() -> None:
    served = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    served.add("count", 41)
    learned, recorded = [], b""
    for _ in ("rank", "joiner"):
        set_up = SetUp(recorded)
        set_up.begin()
        set_up.torch_imported(torch)
        learned.append(use_of_a_store(1, served.port))
        set_up.end()
        recorded = set_up.snapshot()
    assert learned[0] == learned[1]
    assert learned[0][0] == 42
    assert served.add("count", 0) == 42
    assert "set" in vars(dist.Store)
