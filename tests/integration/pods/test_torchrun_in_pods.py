"""torchrun itself in pods whose agents the test plays: what it starts is protected, and it disturbs nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.cells import few
from support.cli_harness import eventually
from support.fake_pod import WITHIN_S, FakePod
from support.ports import free_port

from torchrelay.protocol.messages import EndNow, Finishing, MayFinish, ScriptFailed, Warm
from torchrelay.protocol.names import EXIT_NO_SPARE_LEFT
from torchrelay.shim.adapters.elastic import ALONE

TORCHRUN = ("-m", "torch.distributed.run", "--nproc-per-node", "1")
SCRIPT = """
import os, sys, time
folder = sys.argv[1]
open(os.path.join(folder, f"began-{os.environ['RANK']}"), "w").close()
while not os.path.exists(os.path.join(folder, "go")):
    time.sleep(0.05)
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Callable[..., FakePod]]:
    pods: list[FakePod] = []

    def make(name: str = "p", parks: bool = False) -> FakePod:
        pods.append(FakePod(tmp_path / name, parks))
        return pods[-1]

    yield make
    for made in pods:
        made.close()


@pytest.fixture
def script(tmp_path: Path) -> tuple[str, str]:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path), str(tmp_path)


def ended(process: subprocess.Popen[bytes], within_s: float = WITHIN_S) -> int:
    return process.wait(within_s)


@pytest.mark.slow
@pytest.mark.parametrize("code", few(1, [3, 0]))
def test_what_it_starts_is_the_rank_and_its_exit_code_is_torchrun_s_own(
    pod: Callable[..., FakePod], script: tuple[str, str], code: int
) -> None:
    p = pod()
    process = p.start(*TORCHRUN, "--standalone", *script, str(code))
    hello = p.wait_for(1)
    assert (hello.launch["RANK"], hello.launch["WORLD_SIZE"], hello.spare) == ("0", "1", False)
    (Path(script[1]) / "go").touch()
    assert ended(process) == (1 if code else 0)
    assert (p.launchers, len(p.hellos)) == (1, 1)


def test_a_killed_process_fails_it_as_always_while_the_job_is_not_protected(
    pod: Callable[..., FakePod], script: tuple[str, str]
) -> None:
    p = pod()
    process = p.start(*TORCHRUN, "--standalone", *script, "0")
    os.kill(p.wait_for(1).pid, signal.SIGKILL)
    assert ended(process) == 1
    assert len(p.hellos) == 1


@pytest.mark.core
@pytest.mark.parametrize(("code", "theirs"), [(0, 0), (EXIT_NO_SPARE_LEFT, 1)])
def test_a_killed_process_of_a_protected_job_is_started_again_and_parked(
    pod: Callable[..., FakePod], script: tuple[str, str], code: int, theirs: int
) -> None:
    p = pod()
    process = p.start(*TORCHRUN, "--standalone", *script, "0")
    first = p.wait_for(1)
    p.protect()
    os.kill(first.pid, signal.SIGKILL)
    again = p.wait_for(2)
    assert again.spare
    assert again.pid != first.pid
    p.over(code)
    p.order(EndNow(code))
    assert ended(process) == theirs
    assert len(p.hellos) == 2


def test_of_two_processes_the_one_that_is_killed_is_started_again_and_the_other_one_goes_on(
    pod: Callable[..., FakePod], script: tuple[str, str]
) -> None:
    p = pod()
    two = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    process = p.start(*two, *script, "0")
    p.wait_for(2)
    by_local_rank = {h.launch["LOCAL_RANK"]: h for h in p.hellos}
    assert sorted(by_local_rank) == ["0", "1"]
    p.protect()
    os.kill(by_local_rank["1"].pid, signal.SIGKILL)
    again = p.wait_for(3)
    assert (again.spare, again.launch["LOCAL_RANK"], again.launch["LOCAL_WORLD_SIZE"]) == (True, "1", "2")
    assert f"process {by_local_rank['1'].pid} was killed" in p.output.read_text()
    os.kill(by_local_rank["0"].pid, 0)
    (Path(script[1]) / "go").touch()
    p.over(0)
    p.order(EndNow(0))
    assert ended(process) == 0
    assert len(p.hellos) == 3


FAILING = """
import os, sys, time
import torch.distributed as dist
dist.init_process_group("gloo")
if os.environ["LOCAL_RANK"] == "1":
    raise ValueError("a bad number")
while not os.path.exists(os.path.join(sys.argv[1], "go")):
    time.sleep(0.05)
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_replaced", few(1, [True, False]))
def test_of_two_processes_one_whose_script_fails_waits_for_the_verdict(
    pod: Callable[..., FakePod], tmp_path: Path, is_replaced: bool
) -> None:
    """It is ended where its rank is replaced, and its neighbour goes on; else torchrun ends both, as always."""
    (tmp_path / "train.py").write_text(FAILING)
    p = pod()
    two = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    process = p.start(*two, str(tmp_path / "train.py"), str(tmp_path))
    p.wait_for(2)
    p.protect()
    by_local_rank = {h.launch["LOCAL_RANK"]: h for h in p.hellos}
    failing = by_local_rank["1"]
    p.until(lambda: any(isinstance(r, ScriptFailed) for r in p.reports.get(failing.pid, ())))
    if not is_replaced:
        p.order_to(failing, MayFinish())
        p.until(lambda: b"closing signal" in p.output.read_bytes())
        p.order_to(by_local_rank["0"], EndNow(1))
        assert ended(process) == 1
        assert len(p.hellos) == 2
        return
    time.sleep(1.5)  # that it waits cannot be waited for
    assert b"closing signal" not in p.output.read_bytes()
    p.order_to(failing, EndNow(137))
    again = p.wait_for(3)
    assert (again.spare, again.launch["LOCAL_RANK"]) == (True, "1")
    p.until(lambda: any(isinstance(r, Warm) for r in p.reports.get(again.pid, ())))
    os.kill(by_local_rank["0"].pid, 0)
    (tmp_path / "go").touch()
    p.until(lambda: any(isinstance(r, Finishing) for r in p.reports.get(by_local_rank["0"].pid, ())))
    p.over(0)
    p.order_to(by_local_rank["0"], MayFinish())
    p.order_to(again, EndNow(0))
    assert ended(process) == 0


def test_in_a_spare_it_meets_nobody_and_what_it_starts_is_parked(
    pod: Callable[..., FakePod], script: tuple[str, str]
) -> None:
    p = pod(parks=True)
    others = ("--nnodes", "3", "--node-rank", "", "--rdzv-backend", "c10d", "--rdzv-endpoint", "nobody.invalid:29400")
    process = p.start(*TORCHRUN, *others, *script, "0", TORCHRELAY_SPARE="1")
    assert p.wait_for(1).spare
    assert p.launchers == 0
    p.protect()
    p.over(0)
    p.order(EndNow(0))
    assert ended(process) == 0


def test_one_that_is_made_again_for_a_job_that_trains_meets_nobody(
    pod: Callable[..., FakePod], script: tuple[str, str]
) -> None:
    p = pod(parks=True)
    static = ("--nnodes", "2", "--node-rank", "1", "--master-addr", "nobody.invalid", "--master-port", "29500")
    p.start(*TORCHRUN, *static, *script, "0")
    assert p.wait_for(1).spare
    assert p.launchers == 1


@pytest.mark.parametrize("meeting", ["c10d", "static"])
def test_a_pod_that_goes_does_not_disturb_the_others(
    pod: Callable[..., FakePod], script: tuple[str, str], meeting: str
) -> None:
    """The one that goes is the one with the common store."""
    pods, port = [pod("a"), pod("b")], free_port()
    c10d = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "job")
    static = ("--master-addr", "127.0.0.1", "--master-port", str(port))
    chosen = c10d if meeting == "c10d" else static
    processes = [
        p.start(*TORCHRUN, "--nnodes", "2", "--node-rank", str(n), *chosen, *script, "0") for n, p in enumerate(pods)
    ]
    children = [p.wait_for(1) for p in pods]
    host = 0 if _listens(processes[0].pid, port) else 1
    for p in pods:
        p.protect()
    eventually("both launchers have seen it", lambda: all(ALONE in p.output.read_text() for p in pods))
    processes[host].kill()
    os.kill(children[host].pid, signal.SIGKILL)
    time.sleep(6.0)  # longer than torchrun's heartbeat of 5 s
    other = processes[1 - host]
    assert other.poll() is None, pods[1 - host].output.read_text()
    began_s = time.monotonic()
    (Path(script[1]) / "go").touch()
    assert ended(other) == 0
    assert time.monotonic() - began_s < 30.0  # and not the 300 s for which it waits for the others' end
    assert len(pods[1 - host].hellos) == 1


def _listens(pid: int, port: int) -> bool:
    """By what the kernel says of its sockets."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        inodes.add(os.readlink(link))
    for line in [*Path("/proc/net/tcp").read_text().splitlines(), *Path("/proc/net/tcp6").read_text().splitlines()]:
        words = line.split()
        if words[1].endswith(f":{port:04X}") and words[3] == "0A" and f"socket:[{words[9]}]" in inodes:
            return True
    return False
