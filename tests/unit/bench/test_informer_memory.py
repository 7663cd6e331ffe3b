"""What the controller keeps of a pod: 10,000 of them have to fit into 500 MiB with all else."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from torchrelay.controller.kube.cluster.pods import Pod, read_pod
from torchrelay.webhook.injection.inject import injected
from torchrelay.webhook.settings import WebhookSettings

BENCH = Path(__file__).resolve().parents[3] / "bench"
PODS, MOST_BYTES = 200, 8 << 10
"""80 MiB for 10,000; measured with all else by `bench/informer_memory.py`."""


def test_a_pod_takes_little_of_what_it_is_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCH))
    from informer_memory import AUTHORITY, training_pod

    settings = WebhookSettings(sidecar="native")
    texts = [json.dumps(injected(training_pod("llama", r, PODS, f"n{r}"), settings, AUTHORITY)[0]) for r in range(PODS)]
    assert min(map(len, texts)) > 10_000, "a pod is about as large as real ones"
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept: list[Pod | None] = [read_pod(json.loads(text)) for text in texts]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert all(pod is not None and pod.manifest["metadata"]["name"] == pod.name for pod in kept)
    print(f"{(after - before) / PODS:.0f} bytes")
    assert (after - before) / PODS < MOST_BYTES
