"""`python -m support.pod_agent FOLDER`: the agent of a pod, with a controller that protects whoever asks; ends with its process.

Its last line of output is a list, as JSON: the boundaries of the process's journal, and what was left in its folder once that was
to be forgotten.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from support.pod_node_world import FakeSession
from torchrelay.agent.pod.config import PodConfig
from torchrelay.agent.pod.node import PodNode
from torchrelay.protocol import messages as msg
from torchrelay.protocol.names import GATE_SECRET_BYTES, WorkerId


class Controller(FakeSession):
    def __init__(self, node: PodNode) -> None:
        super().__init__()
        self._node = node
        self.ended = asyncio.Event()

    def send(self, message: Any) -> None:
        super().send(message)
        if isinstance(message, msg.WorkerStarted):
            self._order(message.worker, msg.Begin(message.worker, "", False))
        elif isinstance(message, msg.FromWorker) and isinstance(message.report, msg.Armed):
            self._order(message.worker, msg.Protect(True, "all ranks are armed", bytes(GATE_SECRET_BYTES)))
        elif isinstance(message, msg.FromWorker) and isinstance(message.report, msg.Finishing):
            self._order(message.worker, msg.MayFinish())
        elif isinstance(message, msg.WorkerExited):
            self.ended.set()

    def _order(self, worker: str, order: Any) -> None:
        # Not at once: whoever reports is not through with it.
        asyncio.get_running_loop().call_soon(self._node.agent.ordered, msg.ToWorker(worker, order))


async def main(folder: Path) -> None:
    config = PodConfig(
        "team", "train", "0a1b2c3d", "127.0.0.1", "x:1", "x:2", b"", folder, folder / "no-token", 0.1, 0.1, kept=folder
    )
    node = PodNode(config)
    controller = node.agent.session = Controller(node)  # type: ignore[assignment]  # a stand-in
    task = asyncio.create_task(node.run())
    await controller.ended.wait()
    (started,) = controller.of(msg.WorkerStarted)
    journal = node.agent.journals.content(WorkerId(started.worker))
    node.agent.ordered(msg.ForgetJournals(started.worker))
    print(json.dumps([sorted(journal.boundaries), sorted(os.listdir(config.journals))]), flush=True)
    task.cancel()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
