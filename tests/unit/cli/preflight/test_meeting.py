"""Where a machine meets the others of its job, and what it says of itself there."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from torchrelay.cli.command_line.given import GivenOptions
from torchrelay.cli.leading.known_machines import KnownMachines, mark, run_id_of, write_machines
from torchrelay.cli.machine import LocalMachine
from torchrelay.cli.preflight.facts import Compared
from torchrelay.cli.preflight.meeting import MeetingPlace, compare
from torchrelay.cli.preflight.subject import subject_of

SECRET = "0123456789abcdef0123456789abcdef"


def meeting(jit_dir: Path, script: str, **changes: Any) -> MeetingPlace | None:
    given: dict[str, Any] = {"nnodes": "2", "node_rank": 1, "master_addr": "node0", "nproc_per_node": "3"} | changes
    options = GivenOptions(script, jit_dirs=(jit_dir,), **given)
    job = subject_of(options, LocalMachine(), {"TORCHRELAY_SECRET": SECRET})
    assert job.problem == ""
    return job.meeting


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text("import model")
    (tmp_path / "model.py").touch()
    return str(tmp_path / "train.py")


def test_a_machine_says_what_it_would_run_and_where_the_job_may_be_led(tmp_path: Path, script: str) -> None:
    jit, run_id = tmp_path / "jit", run_id_of(SECRET.encode())
    place = meeting(jit, script)
    assert place is not None
    assert place.addresses == ("node0:29476",)
    assert (place.program.script, place.program.imported) == (script, ("model.py", "train.py"))
    assert place.program.jit_marks == ("none",)
    assert not jit.exists()
    write_machines(jit, run_id, KnownMachines("job", "n0", ("node7:1",)))
    theirs = mark(jit, run_id)
    again = meeting(jit, script)
    assert again is not None
    assert (again.addresses, again.program.jit_marks) == (("node7:1", "node0:29476"), (theirs,))


def test_the_check_that_is_proposed_is_one_for_another_machine(tmp_path: Path, script: str) -> None:
    faults = ("kill:rank=1,step=3",)
    place = meeting(tmp_path / "jit", script, node_rank=0, inject=faults)
    assert place is not None
    words = shlex.split(place.there)
    assert words[words.index("doctor") :] == [
        *("doctor", "--nproc-per-node", "3", "--nnodes", "2", "--node-rank", "1", "--master-addr", "node0"),
        *("--jit-dir", str(tmp_path / "jit"), "--inject", "kill:rank=1,step=3,phase=forward", script),
    ]


def test_without_a_script_what_is_known_is_compared_all_the_same(tmp_path: Path) -> None:
    place = meeting(tmp_path, "")
    assert place is not None
    assert (place.program.script, place.program.sources) == ("", {})
    assert place.program.python


def test_one_machine_has_nobody_to_meet(tmp_path: Path, script: str) -> None:
    assert meeting(tmp_path, script, nnodes="1", node_rank=0, master_addr=None) is None


def test_whoever_is_at_the_controller_s_port_without_speaking_its_words_is_told_and_holds_nobody_up(
    tmp_path: Path, script: str
) -> None:
    """One that says what is no TLS, one that hangs up, and one that says nothing."""
    place = meeting(tmp_path / "jit", script)
    assert place is not None
    talks, hangs_up, silent = (socket.create_server(("127.0.0.1", 0)) for _ in range(3))
    with talks, hangs_up, silent:
        for server, says in ((talks, b"\xff" * 5000), (hangs_up, b"")):
            threading.Thread(target=answer_all, args=(server, says), daemon=True).start()
        addresses = tuple(f"127.0.0.1:{server.getsockname()[1]}" for server in (talks, hangs_up, silent))
        found = compare(dataclasses.replace(place, addresses=addresses))
        assert found == Compared(strangers=found.strangers), "nobody is there"
        assert set(found.strangers) <= set(addresses)
        for server in (talks, hangs_up, silent):
            server.shutdown(socket.SHUT_RDWR)


def answer_all(server: socket.socket, says: bytes) -> None:
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection:
                connection.sendall(says)
