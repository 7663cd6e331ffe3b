"""Whatever goes wrong while a rank is got ready for protection: it trains without."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch.distributed as dist

from torchrelay.protocol.journals import journal
from torchrelay.protocol.messages import Armed, Assign, Disabled, OrderFailed, Protect
from torchrelay.protocol.names import GATE_SECRET_BYTES
from torchrelay.shim.agent_link import announced_exit
from torchrelay.shim.agent_link.config import ShimConfig
from torchrelay.shim.bootstrap.standby import Standby
from torchrelay.shim.capture.scripted_calls import ScriptedCalls
from torchrelay.shim.runtime.engine_maker import EngineMaker
from torchrelay.shim.runtime.runtime import Runtime


class FakeLink:
    """An agent that protects whoever says that it is armed."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def start(self, handle: Callable[[Any], None], lost: Any, again: Any) -> None:
        self._handle = handle

    def send(self, report: Any) -> None:
        self.sent.append(report)
        if isinstance(report, Armed):
            self._handle(Protect(True, "all ranks are armed", bytes(GATE_SECRET_BYTES)))

    def close_in_child(self) -> None:
        pass


def made(folder: Path) -> tuple[Runtime, FakeLink]:
    link = FakeLink()
    config = ShimConfig("", "n0.w0", "t", str(folder / "journal"), False, "127.0.0.1", (), ())
    return Runtime(config, link), link  # type: ignore[arg-type]  # a stand-in


def first_group(runtime: Runtime) -> Any:
    """The script makes it."""
    maker = EngineMaker(runtime.config, runtime.link, Standby(), None, (), None, ScriptedCalls())
    return runtime.script_groups(maker).init_process_group(own_group)


def own_group() -> str:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return "the script's group"


@pytest.fixture
def no_group() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def raises(error: Exception) -> Callable[..., NoReturn]:
    def fail(*args: Any, **kwargs: Any) -> NoReturn:
        raise error

    return fail


FULL = OSError(errno.ENOSPC, "No space left on device")
CASES = {
    "no rights": (
        "torchrelay.protocol.journals.journal.make_below",
        PermissionError(errno.EACCES, "Permission denied"),
    ),
    "a full disk": ("torchrelay.protocol.journals.journal.open_below", FULL),
    "no memory": ("torchrelay.protocol.journals.journal.map_file", MemoryError("out of memory")),
    "our mistake": ("torchrelay.shim.journal.remote_copies.RemoteJournalCopies.__init__", KeyError("ours")),
}


@pytest.mark.parametrize("case", CASES)
def test_a_rank_that_cannot_be_got_ready_trains_and_nobody_counts_on_it(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], no_group: None
) -> None:
    place, error = CASES[case]
    monkeypatch.setattr(place, raises(error))
    runtime, link = made(tmp_path)
    assert first_group(runtime) == "the script's group"
    assert runtime.engine is None
    (told,) = link.sent
    assert isinstance(told, Disabled), "it was said to be armed before it was"
    assert type(error).__name__ in told.reason
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"torchrelay: warning: not protecting this process: {told.reason}"


def test_one_that_fails_after_all_were_armed_keeps_nobody_waiting_at_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_group: None
) -> None:
    monkeypatch.setattr(EngineMaker, "engine", raises(MemoryError("no room")))
    runtime, link = made(tmp_path)
    assert first_group(runtime) == "the script's group"
    assert [type(m) for m in link.sent] == [Armed, Disabled]
    store = dist.PrefixStore("torchrelay/0", dist.distributed_c10d._get_default_store())
    assert store.get("gate/0") == b""


def test_shared_memory_of_a_rank_that_is_not_to_be_protected_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_group: None
) -> None:
    closed = []
    monkeypatch.setattr(journal.JournalWriter, "close", lambda self: closed.append(self))
    runtime, link = made(tmp_path)
    monkeypatch.setattr(
        link, "send", lambda report: runtime.orders.handle(Protect(False, "one rank is not")) if report else None
    )
    first_group(runtime)
    assert runtime.engine is None
    assert len(closed) == 1


def test_a_spare_that_cannot_be_got_ready_ends_and_does_not_train_as_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(BaseException):
        pass

    monkeypatch.setattr(announced_exit, "leave", raises(Ended()))  # type: ignore[arg-type]  # no Exception, so that nothing takes it
    runtime, link = made(tmp_path)
    runtime._spare.take(Assign(3, 1, 2, {}, b""))
    with pytest.raises(Ended):
        runtime.disable("torch could not be prepared: OSError: no room")
    (told,) = link.sent
    assert isinstance(told, OrderFailed)
    assert (told.generation, told.order, told.lasting) == (3, "join", False)
    assert "no room" in told.reason
