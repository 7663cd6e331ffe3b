"""Where a spare is to be."""

from __future__ import annotations

from torchrelay.controller.kube.decide.placement import HOST, placement

LABELS = {"nvidia.com/gpu.product": "H100", "topology.kubernetes.io/zone": "b", "other": "x"}


def test_a_spare_is_kept_apart_from_the_job() -> None:
    terms, reasons = placement("llama", {}, [])
    (term,) = terms
    assert term["apart"]["podAffinityTerm"]["topologyKey"] == HOST
    assert term["apart"]["podAffinityTerm"]["labelSelector"] == {"matchLabels": {"torchrelay.dev/job": "llama"}}
    assert len(reasons) == 1


def test_labels_of_the_ranks_node_are_preferred_the_first_key_most() -> None:
    terms, _ = placement("llama", LABELS, [])
    weights = {t["node"]["preference"]["matchExpressions"][0]["key"]: t["node"]["weight"] for t in terms if "node" in t}
    assert list(weights) == ["nvidia.com/gpu.product", "topology.kubernetes.io/zone"]
    assert weights["nvidia.com/gpu.product"] > weights["topology.kubernetes.io/zone"] > 0


def test_keys_can_be_chosen() -> None:
    terms, _ = placement("llama", LABELS, [], ["other"])
    (term,) = [t["node"] for t in terms if "node" in t]
    assert term["preference"]["matchExpressions"] == [{"key": "other", "operator": "In", "values": ["x"]}]


def test_a_node_in_quarantine_is_excluded_and_not_merely_disliked() -> None:
    terms, reasons = placement("llama", {}, ["n3", "n2"])
    assert {"never": {"key": HOST, "operator": "NotIn", "values": ["n2", "n3"]}} in terms
    assert any("quarantine" in r for r in reasons)
