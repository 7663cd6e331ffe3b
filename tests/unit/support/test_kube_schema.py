from __future__ import annotations

import jsonschema
import pytest
from support import kube_schema

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p"},
    "spec": {"containers": [{"name": "c", "image": "i"}]},
}


def test_a_pod_is_a_pod() -> None:
    kube_schema.check(POD, "1.29")


@pytest.mark.parametrize("spoil", [{"spec": {}}, {"spec": {"containers": [{"name": "c", "imgae": "i"}]}}, {"spce": {}}])
def test_what_is_none_is_found(spoil: dict[str, object]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        kube_schema.check({**POD, **spoil}, "1.29")


def test_schemas_of_two_releases_of_kubernetes_differ() -> None:
    sidecar = {"name": "s", "image": "i", "restartPolicy": "Always"}
    pod = {**POD, "spec": {"initContainers": [sidecar], "containers": [{"name": "c", "image": "i"}]}}
    kube_schema.check(pod, "1.28")
    with pytest.raises(jsonschema.ValidationError):
        kube_schema.check(pod, "1.27")
