from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from torchrelay.shim.backends import nccl_interface
from torchrelay.shim.backends.nccl import Nccl, _copy_options
from torchrelay.shim.backends.nccl_interface import INTERFACE, lacking, signatures


def documented(name: str, text: str) -> Any:
    """A function that tells of itself as those of torch's C++ do."""

    class Function:
        __doc__ = text

        def __call__(self) -> None: ...

        @property
        def __signature__(self) -> Any:
            raise ValueError("no signature found")

    made = Function()
    made.__name__ = name  # type: ignore[attr-defined]  # a stand-in's
    return made


INIT = documented(
    "__init__",
    "__init__(*args, **kwargs)\nOverloaded function.\n\n"
    "1. __init__(self: C.ProcessGroupNCCL, store: C.Store, rank: typing.SupportsInt, size: int, options: C.Options) -> None\n\n"
    "Makes one.\n\n"
    "2. __init__(self: C.ProcessGroupNCCL, store: C.Store, rank: int, size: int, timeout: timedelta = <a(b, c) at 0x7f>) -> None\n",
)
DUMP = (
    "_dump_nccl_trace(includeCollectives: Optional[bool] = None, includeStackTraces: bool = True, onlyActive: bool = False) "
    "-> bytes"
)


def torch_with(**other: Any) -> dict[str, Any]:
    """What is called of torch; `other` in place of what it has."""
    group = {used.name: object() for used in INTERFACE if used.owner == nccl_interface.GROUP} | {"__init__": INIT}
    c10d = {"_dump_nccl_trace": documented("_dump_nccl_trace", DUMP)}
    names = group | c10d | other
    return {
        nccl_interface.GROUP: SimpleNamespace(**{n: names[n] for n in group if names[n] is not None}),
        nccl_interface.OPTIONS: SimpleNamespace(_timeout=1, config=2),
        nccl_interface.CONFIG: SimpleNamespace(blocking=0),
        nccl_interface.C10D: SimpleNamespace(**{n: names[n] for n in c10d if names[n] is not None}),
    }


def told(found: dict[str, Any]) -> list[str]:
    return [name for _, name in lacking(found)]


def test_a_torch_that_has_all_lacks_nothing() -> None:
    assert told(torch_with()) == []


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"abort": None}, "ProcessGroupNCCL.abort"),
        ({"get_error": None}, "ProcessGroupNCCL.get_error"),
        (
            {"abort": documented("abort", "abort(self: C.Backend, reason: str) -> None")},
            "ProcessGroupNCCL.abort called with no argument",
        ),
        (
            {
                "__init__": documented(
                    "__init__", "__init__(self: C.ProcessGroupNCCL, store: C.Store, rank: int) -> None"
                )
            },
            "ProcessGroupNCCL called with 4 arguments",
        ),
        (
            {
                "_dump_nccl_trace": documented(
                    "_dump_nccl_trace", "_dump_nccl_trace(includeCollectives: bool = True) -> bytes"
                )
            },
            "torch._C._distributed_c10d._dump_nccl_trace called with includeCollectives, includeStackTraces, onlyActive",
        ),
    ],
)
def test_what_torch_lacks_or_calls_otherwise_is_named(other: dict[str, Any], name: str) -> None:
    assert told(torch_with(**other)) == [name]


def test_every_way_to_call_a_function_is_known() -> None:
    assert [(way.names, way.required) for way in signatures(INIT)] == [
        (("store", "rank", "size", "options"), 4),
        (("store", "rank", "size", "timeout"), 3),
    ]
    assert [(way.names, way.required) for way in signatures(lambda a, b=1: None)] == [(("a", "b"), 1)]
    assert signatures(documented("abort", "")) == [], "torch does not say"


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """As if torch had NCCL."""
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    nccl_interface.lacking_here.cache_clear()
    yield monkeypatch
    nccl_interface.lacking_here.cache_clear()


def test_a_job_whose_torch_lacks_what_is_needed_is_refused_and_what_can_be_spared_is_told(
    nccl: pytest.MonkeyPatch,
) -> None:
    nccl.setattr(nccl_interface, "owners", lambda: torch_with(get_error=None))
    assert Nccl().missing() == ""
    assert f"torch {torch.__version__} lacks ProcessGroupNCCL.get_error: a communicator that fails" in Nccl().note
    nccl_interface.lacking_here.cache_clear()
    nccl.setattr(nccl_interface, "owners", lambda: torch_with(get_error=None, eager_connect_single_device=None))
    assert Nccl().missing() == f"torch {torch.__version__} lacks ProcessGroupNCCL.eager_connect_single_device"


def test_what_can_be_spared_is_never_needed() -> None:
    assert {used.name for used in INTERFACE if used.without} == {"get_error", "_dump_nccl_trace"}


@pytest.mark.parametrize(("hip", "name"), [(None, "NCCL"), ("7.1.0", "RCCL")])
def test_the_library_is_called_what_it_is(hip: str | None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", hip)
    assert Nccl().note.startswith(f"{name}: torch's own watchdog")
    failed = SimpleNamespace(get_error=lambda: SimpleNamespace(name="COMM_ERROR"))
    assert Nccl().failure(failed) == f"a communicator of {name} has failed"
    assert name in Nccl.failure_marks


class Config:
    net_name: str | None = None
    """torch crashes where a name is set to None."""

    def __init__(self) -> None:
        self.blocking, self.min_ctas, self.max_ctas = -1, -1, -1

    def __setattr__(self, name: str, value: Any) -> None:
        assert value is not None
        super().__setattr__(name, value)


class Options:
    def __init__(self) -> None:
        self.is_high_priority_stream, self.group_name, self.global_ranks_in_group = False, "", [0]
        self.config = Config()


def test_a_new_communicator_gets_the_options_that_the_script_has_set_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dist, "ProcessGroupNCCL", SimpleNamespace(Options=Options), raising=False)
    before, new = Options(), Options()
    before.is_high_priority_stream, before.global_ranks_in_group = True, [0, 2]
    before.config.min_ctas, before.config.blocking = 4, 1
    _copy_options(before, new)
    assert (new.is_high_priority_stream, new.global_ranks_in_group, new.group_name) == (True, [0, 2], "")
    assert (new.config.min_ctas, new.config.max_ctas, new.config.net_name) == (4, -1, None)
    assert new.config.blocking == -1, "whether it blocks is for us to say"
