"""Where agents are led to; the API is in memory."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from support import kube_schema
from support.fake_kube import FakeApi

from torchrelay.controller.kube.address import Address, slice_of
from torchrelay.controller.kube.client.api import ENDPOINT_SLICES, ENDPOINT_SLICES_BETA
from torchrelay.controller.kube.settings import ClusterSettings
from torchrelay.protocol.kube import kube_names as kube

FIRST = ClusterSettings("torchrelay-system", "torchrelay-controller-1", address="10.0.0.1")
SECOND = dataclasses.replace(FIRST, pod="torchrelay-controller-2", address="10.0.0.2")


def publish(api: FakeApi, *settings: ClusterSettings) -> None:
    async def run() -> None:
        for s in settings:
            await Address(api, s).publish()  # type: ignore[arg-type]  # a stand-in

    asyncio.run(run())


def addresses(api: FakeApi) -> list[str]:
    (found,) = api.all(ENDPOINT_SLICES)
    return [a for e in found["endpoints"] for a in e["addresses"]]


def test_the_newest_leader_is_the_only_one_that_is_found() -> None:
    api = FakeApi()
    publish(api, FIRST)
    assert addresses(api) == ["10.0.0.1"]
    publish(api, SECOND)
    assert addresses(api) == ["10.0.0.2"]


def test_what_somebody_has_changed_or_deleted_is_put_right() -> None:
    api = FakeApi()
    publish(api, FIRST)
    made = api.named(ENDPOINT_SLICES, "torchrelay-controller-ipv4", "torchrelay-system")
    made["endpoints"] = []
    publish(api, FIRST)
    assert addresses(api) == ["10.0.0.1"]
    api.objects.clear()
    publish(api, FIRST)
    assert addresses(api) == ["10.0.0.1"]


def test_where_all_is_right_nothing_is_written() -> None:
    api = FakeApi()
    publish(api, FIRST)
    before = api.named(ENDPOINT_SLICES, "torchrelay-controller-ipv4", "torchrelay-system")["metadata"]
    publish(api, FIRST, FIRST)
    assert api.asked["EndpointSlice"] == 1
    assert api.named(ENDPOINT_SLICES, "torchrelay-controller-ipv4", "torchrelay-system")["metadata"] == before


def test_an_older_cluster_is_asked_in_its_own_version() -> None:
    api = FakeApi()
    api.unknown = {ENDPOINT_SLICES.version}
    publish(api, FIRST)
    (made,) = api.all(ENDPOINT_SLICES_BETA)
    assert made["apiVersion"] == "discovery.k8s.io/v1beta1"


def test_outside_of_a_cluster_nothing_is_led_anywhere() -> None:
    api = FakeApi()
    publish(api, dataclasses.replace(FIRST, address=""))
    assert api.objects == {}


@pytest.mark.parametrize(("address", "family"), [("10.0.0.1", "IPv4"), ("fd00::17", "IPv6")])
def test_an_address_is_what_kubernetes_takes(address: str, family: str) -> None:
    made = slice_of(dataclasses.replace(FIRST, address=address), "discovery.k8s.io/v1")
    for release in ("1.25", "1.36"):
        kube_schema.check(made, release)
    assert made["addressType"] == family
    assert made["metadata"]["labels"]["kubernetes.io/service-name"] == kube.CONTROLLER_SERVICE
    assert {p["name"]: p["port"] for p in made["ports"]} == {"relay": kube.RELAY_PORT, "enroll": kube.ENROLL_PORT}
