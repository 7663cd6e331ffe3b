"""What the script holds for a collective that it has begun with `async_op`, once that is complete."""

from __future__ import annotations

from typing import Any

import torch


class CompletedCollective:
    """What `async_op=True` returns where the answer is known, and what a new process has for a handle that the lost rank kept."""

    def wait(self, timeout: Any = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def is_success(self) -> bool:
        return True

    def get_future(self) -> torch.futures.Future[Any]:
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(None)
        return future
