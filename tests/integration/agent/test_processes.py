"""A real agent with real processes, over a real unix socket and real gRPC with mutual TLS."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from integration.agent.agent_harness import Controller, agent, ends_of, serving

from torchrelay.agent.health.workers.process import GONE, process_state
from torchrelay.protocol.messages import (
    Assign,
    Begin,
    CheckDevice,
    Commit,
    DeviceChecked,
    Disabled,
    FaultInjected,
    Fence,
    FetchJournal,
    ForgetJournals,
    FromWorker,
    Hello,
    Interrupt,
    JournalContent,
    LookClosely,
    OrderFailed,
    StopJob,
    TellAgain,
    ToWorker,
    Warm,
    WorkerExited,
)

pytestmark = pytest.mark.core


def run(scenario: object) -> None:
    asyncio.run(scenario)  # type: ignore[arg-type]  # any awaitable


async def ready(controller: Controller, *workers: str) -> None:
    for worker in workers:
        await controller.report(Disabled, worker)


def test_the_agent_introduces_its_workers_and_passes_their_reports_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port, nproc_per_node=2, spares=1) as node:
            hello = await controller.hello()
            assert [(w.worker, w.rank) for w in hello.workers] == [("n0.w0", 0), ("n0.w1", 1), ("n0.s0", -1)]
            assert (hello.node, hello.node_rank, hello.host) == ("n0", 0, "127.0.0.1")
            said = {w: await controller.report(Hello, w) for w in ("n0.w0", "n0.w1", "n0.s0")}
            assert {h.token for h in said.values()} == {""}
            assert {w: h.pid for w, h in said.items()} == {w.worker: w.pid for w in hello.workers}
            assert {w: h.spare for w, h in said.items()} == {"n0.w0": False, "n0.w1": False, "n0.s0": True}
            assert node.process.returncode is None

    run(scenario())


def test_a_killed_worker_is_reported_after_all_that_it_said(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port, nproc_per_node=2) as node:
            await ready(controller, "n0.w0", "n0.w1")
            node.tell("n0.w1", "from torchrelay.protocol.messages import Warm")
            node.tell("n0.w1", "link.send(*(Warm(str(i)) for i in range(500))); os.kill(os.getpid(), 9)")
            exited = await controller.first(WorkerExited)
            assert exited == WorkerExited("n0.w1", 128 + signal.SIGKILL, signal.SIGKILL, False)
            before = controller.received[: controller.received.index(exited)]
            assert [m.report.torch_version for m in before if isinstance(getattr(m, "report", None), Warm)] == [
                str(i) for i in range(500)
            ]

    run(scenario())


def test_an_exit_code_is_passed_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port) as node:
            node.tell("n0.w0", "sys.exit(3)")
            assert await controller.first(WorkerExited) == WorkerExited("n0.w0", 3, 0, False)

    run(scenario())


def test_a_fence_ends_a_stopped_process_and_its_child(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port) as node:
            await ready(controller, "n0.w0")
            node.tell("n0.w0", "import subprocess; from torchrelay.protocol.messages import Warm")
            node.tell("n0.w0", "child = subprocess.Popen(['sleep', '1000']); link.send(Warm(str(child.pid)))")
            child = int((await controller.report(Warm, "n0.w0")).torch_version)
            node.tell("n0.w0", "os.killpg(0, 19)")
            await controller.progress(lambda w: w.process_state == "T")
            async with ends_of(child) as ended:
                controller.order(Fence("n0.w0"))
                assert await controller.first(WorkerExited) == WorkerExited("n0.w0", 137, signal.SIGKILL, True)
                await ended()

    run(scenario())


def test_a_fence_of_a_process_that_is_gone_is_answered_too(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port) as node:
            node.tell("n0.w0", "sys.exit(7)")
            await controller.first(WorkerExited, fenced=False)
            controller.order(Fence("n0.w0"))
            assert await controller.first(WorkerExited, fenced=True) == WorkerExited("n0.w0", 7, 0, True)

    run(scenario())


def test_nothing_is_told_again_of_a_process_that_has_been_replaced_and_a_fence_of_it_is_answered(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port, nproc_per_node=2, spares=1) as node:
            await ready(controller, "n0.w0", "n0.w1", "n0.s0")
            for worker in ("n0.w1", "n0.s0"):
                node.tell(worker, "sys.exit(7)")
                await controller.first(WorkerExited, worker=worker)
            controller.order(ForgetJournals("n0.w1"))
            controller.order(ForgetJournals("n0.w0"))
            told = len(controller.received)
            controller.order(TellAgain())
            controller.order(Fence("n0.s0"))
            assert await controller.first(WorkerExited, fenced=True) == WorkerExited("n0.s0", 7, 0, True)
            again = {m.worker for m in controller.received[told:] if isinstance(m, (FromWorker, WorkerExited))}
            assert again == {"n0.w0", "n0.s0"}

    run(scenario())


def test_the_journal_of_a_killed_worker_is_readable(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port) as node:
            node.tell("n0.w0", "for b in range(5): journal.write_boundary(b, b'boundary %d' % b)")
            node.tell("n0.w0", "journal.write_gate(4, b'gate'); journal.write_set_up(b'recording')")
            node.tell("n0.w0", "journal._slots[0]._map[0:8] = bytes(8)  # as in the middle of writing boundary 3")
            node.tell("n0.w0", "os.kill(os.getpid(), 9)")
            await controller.first(WorkerExited)
            controller.order(FetchJournal("n0.w0"))
            assert await controller.first(JournalContent) == JournalContent(
                "n0.w0", {2: b"boundary 2", 4: b"boundary 4"}, {4: b"gate"}, b"recording"
            )

    run(scenario())


WITHOUT_LOOKS = """
import sys
from torchrelay.agent.connections import cadence
from torchrelay.agent.__main__ import main
cadence.CALM_LOOK_S = 1e6
sys.exit(main())
"""


def test_a_stop_is_seen_without_a_look(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port, ("-c", WITHOUT_LOOKS)) as node:
            await ready(controller, "n0.w0")
            node.tell("n0.w0", "os.kill(os.getpid(), 19)")
            await controller.progress(lambda w: w.process_state == "T")

    run(scenario())


def test_when_the_controller_asks_for_it_progress_is_told_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port, ("-c", WITHOUT_LOOKS)) as node:
            await ready(controller, "n0.w0")
            controller.order(LookClosely(True))
            node.tell("n0.w0", "journal.boundary, journal.phase = 12, 1; journal.publish()")
            await controller.progress(lambda w: w.boundary == 12)

    run(scenario())


def test_progress_is_polled_from_shared_memory_and_the_kernel(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port) as node:
            node.tell("n0.w0", "journal.boundary, journal.count, journal.phase = 12, 99, 1; journal.publish()")
            seen = await controller.progress(lambda w: w.boundary == 12)
            assert (seen.worker, seen.count, seen.phase, seen.waiting) == ("n0.w0", 99, "body", False)
            assert seen.process_state in "RSD"

    run(scenario())


def test_orders_reach_their_worker_and_a_fault_is_acknowledged_after_it_was_passed_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port, nproc_per_node=2, spares=1) as node:
            await ready(controller, "n0.w0", "n0.w1", "n0.s0")
            orders = {
                "n0.w1": Interrupt(2, "why"),
                "n0.s0": Assign(2, 1, 2, {"ROLE_NAME": "default"}, b"set-up"),
            }
            for worker, order in orders.items():
                controller.order(ToWorker(worker, order))
                assert await controller.echo(worker, order) is not None
            node.tell("n0.w0", "from torchrelay.protocol.messages import FaultInjected")
            node.tell(
                "n0.w0", "link.send(FaultInjected('kill:rank=0,step=4,phase=forward', 3)); link.acknowledged.acquire()"
            )
            node.tell("n0.w0", "os.kill(os.getpid(), 9)")
            exited = await controller.first(WorkerExited)
            fault = await controller.report(FaultInjected, "n0.w0")
            assert fault == FaultInjected("kill:rank=0,step=4,phase=forward", 3)
            assert controller.received.index(exited) > max(
                i for i, m in enumerate(controller.received) if getattr(m, "report", None) == fault
            )

    run(scenario())


def test_a_joiner_gets_the_faults_of_its_rank_that_have_not_struck(tmp_path: Path) -> None:
    struck, to_come = "kill:rank=0,step=3,phase=gate", "stop:rank=0,step=9,phase=forward"

    async def scenario() -> None:
        controller = Controller()
        faults = [struck, to_come]
        async with serving(controller) as port, agent(tmp_path, port, spares=1, inject=faults) as node:
            await ready(controller, "n0.w0", "n0.s0")
            node.tell("n0.w0", "from torchrelay.protocol.messages import FaultInjected")
            node.tell("n0.w0", f"link.send(FaultInjected('{struck}', 2)); os.kill(os.getpid(), 9)")
            await controller.first(WorkerExited)
            controller.order(ToWorker("n0.s0", Assign(1, 0, 1)))
            env = {"TORCHRELAY_INJECT": to_come, "ROLE_NAME": "default"}
            assert await controller.echo("n0.s0", Assign(1, 0, 1, env)) is not None

    run(scenario())


def test_a_script_that_waited_begins_with_its_own_rank_or_that_of_a_missing_machine(tmp_path: Path) -> None:
    def told(rank: int) -> dict[str, str]:
        return {"RANK": str(rank), "MASTER_ADDR": "10.0.0.9", "ROLE_NAME": "default"}

    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port, spares=1, parks=True, role="trainer") as node:
            await ready(controller, "n0.w0", "n0.s0")
            for worker, rank in (("n0.w0", 0), ("n0.s0", 1)):
                node.tell(worker, "from torchrelay.protocol.messages import Disabled")
                node.tell(worker, "link.order = lambda o: link.send(Disabled(repr(sorted(o.env.items()))))")
                node.tell(worker, "link.send(Disabled('listens'))")
                await controller.first(FromWorker, worker=worker, report=Disabled("listens"))
                controller.order(ToWorker(worker, Begin(worker, "", False, told(rank))))
                begun = Disabled(repr(sorted((told(rank) | {"ROLE_NAME": "trainer"}).items())))
                assert await controller.first(FromWorker, worker=worker, report=begun) is not None
            node.tell("n0.s0", "os.kill(os.getpid(), 9)")
            await controller.first(WorkerExited, worker="n0.s0")
            controller.order(FetchJournal("n0.s0"))  # what is left of a rank is kept, of a spare nothing
            assert await controller.first(JournalContent, worker="n0.s0") is not None

    run(scenario())


def test_an_order_that_no_frame_can_hold_fails_instead_of_vanishing(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port):
            await ready(controller, "n0.w0")
            controller.order(ToWorker("n0.w0", Assign(4, 0, 1, {}, bytes(13 << 20))))
            failed = await controller.until(
                lambda got: next((m.report for m in got if isinstance(getattr(m, "report", None), OrderFailed)), None)
            )
            assert (failed.generation, failed.order) == (4, "Assign")
            assert "larger than a frame may be" in failed.reason

    run(scenario())


def test_a_device_that_nobody_knows_is_looked_for_and_not_found(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port, nproc_per_node=1):
            controller.order(CheckDevice("GPU-1"))
            checked = await controller.first(DeviceChecked)
            assert (checked.subject, checked.found, checked.message) == ("GPU-1", False, "no source knows it")

    run(scenario())


def test_the_job_is_stopped_with_the_signal_first_and_the_agent_ends_with_the_exit_code(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port, nproc_per_node=2, spares=1) as node:
            await ready(controller, "n0.w0", "n0.w1", "n0.s0")
            node.tell("n0.w1", "import signal; signal.signal(15, lambda *a: os._exit(5)); link.send()")
            node.tell("n0.w1", "from torchrelay.protocol.messages import Warm; link.send(Warm('handler set'))")
            await controller.report(Warm, "n0.w1")
            controller.order(StopJob(17, signal.SIGTERM, "enough"))
            code, _, _ = await node.ended()
            assert code == 17
            exits = {m.worker: m for m in controller.received if isinstance(m, WorkerExited)}
            assert exits == {
                "n0.w0": WorkerExited("n0.w0", 143, signal.SIGTERM, False),
                "n0.w1": WorkerExited("n0.w1", 5, 0, False),
                "n0.s0": WorkerExited("n0.s0", 143, signal.SIGTERM, False),
            }
            assert list(node.journals.iterdir()) == []
            assert not list(node.run_dir.glob("*.sock"))

    run(scenario())


def test_what_ignores_the_signal_or_is_stopped_does_not_outlive_the_grace(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port, nproc_per_node=2, grace_s=2.0) as node:
            node.tell("n0.w0", "import signal; signal.signal(15, signal.SIG_IGN)")
            node.tell("n0.w0", "from torchrelay.protocol.messages import Warm; link.send(Warm('deaf'))")
            await controller.report(Warm, "n0.w0")
            await ready(controller, "n0.w1")
            node.tell("n0.w1", "os.kill(os.getpid(), 19)")
            await controller.progress(lambda w: w.worker == "n0.w1" and w.process_state == "T")
            controller.order(StopJob(1, signal.SIGTERM, "enough"))
            code, _, _ = await node.ended()
            assert code == 1
            signals = {m.worker: m.signal for m in controller.received if isinstance(m, WorkerExited)}
            assert signals == {"n0.w0": signal.SIGKILL, "n0.w1": signal.SIGTERM}

    run(scenario())


def test_the_end_of_stdin_ends_all_processes(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port, nproc_per_node=2, spares=1) as node:
            await ready(controller, "n0.w0", "n0.w1", "n0.s0")
            pids = [w.pid for w in (await controller.hello()).workers]
            assert node.process.stdin is not None
            node.process.stdin.close()
            await node.ended()
            assert [process_state(pid) for pid in pids] == [GONE] * 3

    run(scenario())


def test_a_killed_agent_takes_its_processes_along(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port, nproc_per_node=2) as node:
            await ready(controller, "n0.w0", "n0.w1")
            async with ends_of(*(w.pid for w in (await controller.hello()).workers)) as ended:
                node.process.kill()
                await ended()

    run(scenario())


def test_a_commit_to_a_worker_that_is_gone_is_no_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port, nproc_per_node=2) as node:
            await ready(controller, "n0.w1")
            node.tell("n0.w0", "sys.exit(0)")
            await controller.first(WorkerExited)
            controller.order(ToWorker("n0.w0", Commit(1)))
            controller.order(ToWorker("n0.w9", Commit(1)))
            node.tell("n0.w1", "from torchrelay.protocol.messages import Warm; link.send(Warm('still there'))")
            await controller.report(Warm, "n0.w1")
            assert node.process.returncode is None

    run(scenario())


def test_a_worker_that_dies_takes_its_data_loaders_along(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port) as node:
            node.tell("n0.w0", "import subprocess; from torchrelay.protocol.messages import Warm")
            node.tell("n0.w0", "child = subprocess.Popen(['sleep', '1000']); link.send(Warm(str(child.pid)))")
            child = int((await controller.report(Warm, "n0.w0")).torch_version)
            async with ends_of(child) as ended:
                node.tell("n0.w0", "os.kill(os.getpid(), 9)")
                await ended()

    run(scenario())


def test_garbage_on_the_socket_is_named_and_the_job_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        async with serving(controller) as port, agent(tmp_path, port) as node:
            await ready(controller, "n0.w0")
            for _ in range(3):
                reader, writer = await asyncio.open_unix_connection(str(node.run_dir / "agent-n0.sock"))
                writer.write(b"\xff" * 128)
                with suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()
            node.tell("n0.w0", "from torchrelay.protocol.messages import Warm; link.send(Warm('fine'))")
            await controller.report(Warm, "n0.w0")
            controller.order(StopJob(0, signal.SIGTERM, "done"))
            code, _, err = await node.ended()
            assert code == 0
            assert err.count("refused") == 1
            assert "Traceback" not in err

    run(scenario())


def test_teed_output_carries_the_rank_and_the_rest_goes_straight_through(tmp_path: Path) -> None:
    async def scenario() -> None:
        controller = Controller()
        logs = {"tee": "0:1", "log_dir": str(tmp_path / "logs")}
        async with serving(controller) as port, agent(tmp_path, port, nproc_per_node=2, **logs) as node:
            for worker in ("n0.w0", "n0.w1"):
                # One write a line: two ranks share the stream, and print() may write a text and its line's end apart.
                for stream in ("out", "err"):
                    node.tell(worker, f"sys.std{stream}.write('{stream} of {worker}\\n'); sys.std{stream}.flush()")
                node.tell(worker, "sys.exit(0)")
            await controller.first(WorkerExited, worker="n0.w0")
            await controller.first(WorkerExited, worker="n0.w1")
            controller.order(StopJob(0, signal.SIGTERM, "done"))
            _, out, err = await node.ended()
            assert sorted(out.splitlines()) == ["[default0]:out of n0.w0", "out of n0.w1"]
            assert sorted(err.splitlines()) == ["err of n0.w0", "err of n0.w1"]
            (log,) = (tmp_path / "logs").glob("test_*/attempt_0/0/stdout.log")
            assert log.read_text() == "out of n0.w0\n"

    run(scenario())


def test_a_command_that_cannot_be_run_is_a_clear_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with agent(tmp_path, 1, command=[str(tmp_path / "no such program")]) as node:
            code, _, err = await node.ended()
            assert code == 1
            assert "no such program cannot be started" in err
            assert "Traceback" not in err

    run(scenario())
