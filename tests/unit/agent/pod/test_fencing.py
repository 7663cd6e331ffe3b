"""A process of the pod is ended from outside, whether it obeys or not."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

import pytest
from support.pod_node_world import WITHIN_S, WORKER, World

from torchrelay.protocol import messages as msg
from torchrelay.protocol.health.kinds import SOURCE_DEAD


async def deaf(w: World) -> asyncio.subprocess.Process:
    """A process that does nothing it is told."""
    shim = await w.shim()
    await shim.hear()
    await w.until(lambda: w.session.of(msg.WorkerStarted))
    w.order(msg.Begin(WORKER, "", False))
    process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "import signal; signal.pause()")
    w.node._processes[WORKER].pid = process.pid  # type: ignore[index]  # a worker's name
    return process


@pytest.mark.parametrize(
    "order",
    [msg.Fence(WORKER), msg.Fence(WORKER, again=True), msg.RestartWorkers("again")],
    ids=["fence", "again", "restart"],
)
def test_who_does_not_obey_is_killed(in_world: Any, order: Any) -> None:
    async def test(w: World) -> None:
        w.node._restarts_in_place._end_s = 0.01
        process = await deaf(w)
        try:
            w.node.agent.ordered(order)
            assert await asyncio.wait_for(process.wait(), WITHIN_S) == -signal.SIGKILL
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    in_world(test)


def test_a_fence_for_one_that_has_ended_is_answered(in_world: Any) -> None:
    """Whoever asks may not have heard of the end: a migration waits for this word."""

    async def test(w: World) -> None:
        shim = await w.shim()
        await shim.hear()
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        shim.close()
        await w.until(lambda: w.session.of(msg.WorkerExited))
        w.node.agent.ordered(msg.Fence(WORKER))
        assert [e.fenced for e in w.session.of(msg.WorkerExited)] == [False, True]

    in_world(test)


@pytest.mark.parametrize("permitted", [False, True])
def test_an_agent_that_may_not_end_the_training_process_says_so(
    in_world: Any, monkeypatch: pytest.MonkeyPatch, permitted: bool
) -> None:
    """The image's own user, which nobody knew when the pod was made; the agent is root without a right over others."""

    def kill(pid: int, number: int) -> None:
        assert number == 0
        if not permitted:
            raise PermissionError

    monkeypatch.setattr("torchrelay.agent.pod.node.os.kill", kill)

    async def test(w: World) -> None:
        shim = await w.shim()
        await shim.hear()
        await w.until(lambda: w.session.of(msg.WorkerStarted))
        told = [signal for signals in w.session.of(msg.HealthSignals) for signal in signals.signals]
        if permitted:
            assert told == []
            return
        (only,) = told
        assert (only.kind, only.worker) == (SOURCE_DEAD, WORKER)
        assert "cannot end a process that hangs" in only.detail
        assert "say runAsUser" in only.detail

    in_world(test)
