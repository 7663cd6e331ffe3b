"""What a rank's set-up learns from outside, and that a joiner's learns the same."""

from __future__ import annotations

import datetime
import os
import pickle
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from multiprocessing import connection, util
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.protocol.names import BARS
from torchrelay.shim.adapters.cpython.diverted import can_divert
from torchrelay.shim.observe import outer_gaps
from torchrelay.shim.set_up import entropy, files_seen, outside
from torchrelay.shim.set_up.recording import SetUp


@pytest.fixture
def world() -> Iterator[Callable[[bytes], SetUp]]:
    begun = []

    def begin(recorded: bytes = b"", draw: entropy.Draw = entropy.from_system) -> SetUp:
        set_up = SetUp(recorded, draw)
        set_up.begin()
        set_up.torch_imported(torch)
        begun.append(set_up)
        return set_up

    yield begin
    for set_up in begun:
        set_up.end()


def changed(rank: SetUp, change: Callable[[Any], Any]) -> bytes:
    """A rank's record with other answers."""
    answers, *rest = pickle.loads(rank.snapshot())
    key, given, lost = pickle.loads(answers)
    return pickle.dumps((pickle.dumps((key, {k: [*map(change, v)] for k, v in given.items()}, lost)), *rest))


def twice(world: Callable[..., SetUp], ask: Callable[[], Any]) -> tuple[Any, Any]:
    """What a rank gets, and what a joiner gets."""
    given, recorded = [], b""
    for _ in ("rank", "joiner"):
        set_up = world(recorded)
        given.append(ask())
        set_up.end()
        recorded = set_up.snapshot()
    return given[0], given[1]


DRAWS: dict[str, Callable[[], Any]] = {
    "python": random.random,
    "numpy": lambda: float(numpy.random.rand()),
    "torch": lambda: torch.rand(1).item(),
    "urandom": lambda: os.urandom(8),
    "secrets": lambda: secrets.token_hex(8),
    "uuid1": uuid.uuid1,
    "uuid4": uuid.uuid4,
    "SystemRandom": lambda: random.SystemRandom().random(),
    "an own generator": lambda: random.Random().random(),
    "random.seed()": lambda: (random.seed(), random.random()),
    "a seed of the process": lambda: (random.seed(time.perf_counter_ns()), random.random()),
    "default_rng": lambda: float(numpy.random.default_rng().random()),
    "SeedSequence": lambda: numpy.random.SeedSequence().entropy,
    "torch.seed": lambda: (torch.seed(), torch.rand(1).item()),
    "torch.Generator.seed": lambda: torch.Generator().seed(),
    "manual_seed": lambda: (torch.manual_seed(time.perf_counter_ns()), torch.rand(1).item())[1],
    "time": time.time,
    "time_ns": time.time_ns,
    "strftime": lambda: time.strftime("%H:%M:%S") + str(time.localtime()[:6]),
    "now": lambda: (datetime.datetime.now(), datetime.datetime.now(datetime.timezone.utc)),
    "today": lambda: (datetime.date.today(), datetime.datetime.today()),
    "several": lambda: [(os.urandom(4), random.getrandbits(32)) for _ in range(3)],
}
BY_THE_SECOND = {"strftime"}
OF_TIME = {"uuid1", "a seed of the process", "manual_seed", "time", "time_ns", "strftime", "now", "today"}


@pytest.mark.parametrize(
    ("ask", "changes"), [(ask, name not in BY_THE_SECOND) for name, ask in DRAWS.items()], ids=DRAWS
)
def test_a_joiner_is_given_what_the_rank_was_given(
    ask: Callable[[], Any], changes: bool, world: Callable[..., SetUp]
) -> None:
    numpy.random.seed(1)
    first, second = twice(world, ask)
    assert first == second
    assert ask() != first or not changes


@pytest.mark.parametrize("name", sorted({*DRAWS} - OF_TIME))
def test_ranks_of_the_same_chosen_chance_draw_the_same(world: Callable[..., SetUp], name: str) -> None:
    given = []
    for text in ("1/0", "1/0", "1/1"):
        set_up = world(draw=entropy.chosen(text))
        given.append(repr(DRAWS[name]()))
        set_up.end()
    assert given[0] == given[1] != given[2]


def test_a_temporary_name_is_given_to_the_line_that_got_it_whoever_drew_names_before(
    world: Callable[..., SetUp],
) -> None:
    """A package may draw one when it is imported, which a spare has done before."""
    given, recorded = [], b""
    for who in ("rank", "joiner"):
        set_up = world(recorded)
        if who == "rank":
            tempfile.gettempdir()
            tempfile.mktemp()
        given.append(os.path.basename(tempfile.mktemp()))
        set_up.end()
        recorded = set_up.snapshot()
    assert given[0] == given[1]
    assert os.path.basename(tempfile.mktemp()) != given[0]


def test_a_name_that_multiprocessing_asks_for_is_not_given_again(world: Callable[..., SetUp]) -> None:
    """It is that of a socket, or of their folder, which the lost rank's processes may still have."""
    util.get_temp_dir()  # made once a process
    given, recorded = [], b""
    for _ in ("rank", "joiner"):
        set_up = world(recorded)
        address = connection.arbitrary_address("AF_UNIX")  # type: ignore[attr-defined]
        given.append(os.path.basename(address))
        set_up.end()
        recorded = set_up.snapshot()
    assert given[0] != given[1]


def test_a_joiner_sees_the_lost_ranks_machine_name(world: Callable[..., SetUp]) -> None:
    def name() -> str:
        return socket.gethostname()

    rank = world()
    name()
    rank.end()
    joiner = world(changed(rank, lambda given: "elsewhere"))
    assert name() == "elsewhere"
    assert name() == socket.gethostname() != "elsewhere"
    joiner.end()


def test_each_line_gets_its_own_answers_whatever_others_ask(world: Callable[..., SetUp]) -> None:
    def own() -> bytes:
        return os.urandom(4)

    def of_a_library() -> bytes:
        return os.urandom(4)

    rank = world()
    of_a_library()
    first = own()
    rank.end()
    world(rank.snapshot())
    assert own() == first


def test_a_draw_that_the_lost_rank_did_not_make_is_refused(world: Callable[..., SetUp]) -> None:
    rank = world()
    rank.end()
    world(rank.snapshot())
    with pytest.raises(StateMismatchError, match="more often than the lost rank"):
        os.urandom(8)


def test_other_threads_draw_for_themselves(world: Callable[..., SetUp]) -> None:
    import threading

    rank = world()
    drawn: list[bytes] = []
    thread = threading.Thread(target=lambda: drawn.append(os.urandom(8)))
    thread.start()
    thread.join()
    rank.end()
    world(rank.snapshot())
    thread = threading.Thread(target=lambda: drawn.append(os.urandom(8)))
    thread.start()
    thread.join()
    assert drawn[0] != drawn[1]


def test_a_deadline_is_not_over_at_once(world: Callable[..., SetUp]) -> None:
    def begin() -> float:
        return time.time()

    rank = world()
    at = begin()
    rank.end()
    world(changed(rank, lambda given: given - 3600))
    began = begin()
    assert began == at - 3600
    assert 0 <= time.time() - began < 60


def test_too_much_to_keep_is_told_and_refused(world: Callable[..., SetUp], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "MAX_BYTES", 1000)
    rank = world()
    for _ in range(20):
        os.urandom(64)
    rank.end()
    assert "too much of os.urandom(64)" in rank.lost
    with pytest.raises(StateMismatchError, match="too much"):
        SetUp(rank.snapshot())


def test_functions_stay_what_they_were_while_and_after(world: Callable[..., SetUp]) -> None:
    kept = time.time, os.urandom, datetime.datetime.__dict__["now"], random.Random.__mro__[1].__dict__["seed"]
    shown = repr(time.time), repr(os.urandom)
    rank = world()
    assert (time.time, os.urandom) == kept[:2]
    assert (repr(time.time), repr(os.urandom)) == shown
    assert pickle.loads(pickle.dumps(time.time)) is time.time
    with pytest.raises(TypeError):
        os.urandom("x")  # type: ignore[arg-type]
    rank.end()
    rank.end()
    assert (datetime.datetime.__dict__["now"], random.Random.__mro__[1].__dict__["seed"]) == kept[2:]
    assert can_divert(time.time)
    assert can_divert(os.urandom)


def test_a_new_process_draws_the_same_whatever_it_has_imported(tmp_path: Path) -> None:
    """A spare has imported torch, perhaps numpy and tempfile, before it is given the record."""
    script = textwrap.dedent(
        """
        import sys
        from pathlib import Path
        record, imported = Path(sys.argv[1]), sys.argv[2:]
        for name in imported: __import__(name)
        if "tempfile" in imported: sys.modules["tempfile"].mktemp()
        from torchrelay.shim.set_up.recording import SetUp
        set_up = SetUp(record.read_bytes() if record.exists() else b"")
        set_up.begin()
        if "torch" in imported: set_up.torch_imported(sys.modules["torch"])
        import torch
        if "torch" not in imported: set_up.torch_imported(torch)
        import numpy.random
        if "numpy.random" not in imported: set_up.numpy_imported(sys.modules["numpy.random"])
        import random, tempfile, uuid
        print(random.random(), numpy.random.rand(), torch.rand(1).item(), uuid.uuid4(), numpy.random.default_rng().random())
        print(tempfile.mktemp())
        set_up.end()
        record.write_bytes(set_up.snapshot())
        """
    )
    (tmp_path / "script.py").write_text(script)
    outputs = [
        subprocess.run(
            [sys.executable, "script.py", "record", *imported], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout
        for imported in ((), ("torch", "numpy.random", "tempfile"))
    ]
    assert outputs[0] == outputs[1] != ""


class Text(str):
    """One that weak references can be made to."""


def test_of_what_is_read_in_set_up_no_more_is_held_than_is_kept() -> None:
    """A script may be fed a data set of many GB by a pipe."""
    rank = outside.Recorded(b"key")
    rank.mark()
    key = ("standard input", "script", 3)
    held = [weakref.ref(rank.answer(key, lambda: Text("x" * (outside.MAX_BYTES // 4)), needed=True)) for _ in range(8)]
    assert [reference() is not None for reference in held] == [True] * 3 + [False] * 5
    assert "too much of standard input" in rank.lost
    with pytest.raises(StateMismatchError, match="too much of standard input"):
        rank.go_back()
    rank.mark()
    rank.go_back()


def test_large_files_that_set_up_has_read_are_told_once_they_are_gone(
    world: Callable[..., SetUp], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_seen, "_SMALL_FILE_BYTES", 4)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.write_text("weights")
    rank = world()
    checkpoint.read_text()
    rank.end()
    joiner = SetUp(rank.snapshot())
    assert rank.gone() == joiner.gone() == []
    checkpoint.unlink()
    assert rank.gone() == joiner.gone() == [str(checkpoint)]
    assert [gap.effect for gap in outer_gaps.outside(rank)] == [BARS]
