"""Training on the imitated GPU ends with the weights and losses of the CPU, bit for bit."""

from __future__ import annotations

import pytest

from imitated_gpu import ranks


@pytest.mark.parametrize("launches", ["queued", "blocking"])
@pytest.mark.parametrize(
    ("parallel", "optimizer"), [("none", "foreach"), ("none", "fused"), ("ddp", "foreach"), ("fsdp2", "fused")]
)
def test_training_is_bitwise_that_of_the_cpu(parallel: str, optimizer: str, launches: str) -> None:
    size = 1 if parallel == "none" else 2
    environment = {"PARALLEL": parallel, "OPTIMIZER": optimizer}
    blocking = "1" if launches == "blocking" else "0"
    on_cpu = ranks.run("training", size, DEVICE="cpu", **environment)
    imitated = ranks.run("training", size, DEVICE="cuda", CUDA_LAUNCH_BLOCKING=blocking, **environment)
    assert [facts["digest"] for facts in imitated] == [facts["digest"] for facts in on_cpu]
    assert [facts["losses"] for facts in imitated] == [facts["losses"] for facts in on_cpu]
    assert [facts["skipped"] for facts in imitated] == [0] * size
    assert all(facts["queued"] > 100 for facts in imitated)
