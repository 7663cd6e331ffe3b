from __future__ import annotations

import pytest

from torchrelay.protocol.errors import RetryableError
from torchrelay.webhook.serving.cluster import sidecar_for


@pytest.mark.parametrize(
    ("minor", "sidecar"),
    [("20", "classic"), ("31+", "classic"), ("32", "native"), ("36-gke.100", "native"), ("100", "native")],
)
def test_native_sidecars_are_used_where_every_kubelet_knows_them(minor: str, sidecar: str) -> None:
    assert sidecar_for({"major": "1", "minor": minor}) == sidecar


def test_a_second_version_of_kubernetes_would_have_them_too() -> None:
    assert sidecar_for({"major": "2", "minor": "0"}) == "native"


@pytest.mark.parametrize("odd", [{}, {"major": "", "minor": "32"}, {"major": "1", "minor": "x"}])
def test_an_odd_answer_is_none(odd: dict[str, str]) -> None:
    with pytest.raises(RetryableError):
        sidecar_for(odd)
