"""What is taken for a peer that went away."""

from __future__ import annotations

import pytest
import torch.distributed as dist

from torchrelay.shim.comm.generations.communication_failure import is_communication_failure


@pytest.mark.parametrize(
    ("error", "is_failure"),
    [
        (RuntimeError("[../gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1"), True),
        (dist.DistBackendError("nccl"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("Connection reset by peer"), False),
    ],
)
def test_only_communication_that_failed_is_taken_for_a_lost_peer(error: BaseException, is_failure: bool) -> None:
    assert is_communication_failure(error) is is_failure
