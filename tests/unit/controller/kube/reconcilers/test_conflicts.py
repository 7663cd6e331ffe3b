"""Somebody else was faster, or an answer was lost: nothing is made twice, and nothing is missing; the API is in memory."""

from __future__ import annotations

import pytest
from cryptography import x509
from support.kube_world import World, in_world

from torchrelay.controller.kube.client.api import CONFIG_MAPS, MIGRATIONS, PODS, SECRETS, SPARE_POOLS, TRAINING_JOBS
from torchrelay.controller.kube.cluster.pods import read_pod
from torchrelay.controller.kube.enrolment.authority import open_authority
from torchrelay.protocol import events as e
from torchrelay.protocol.errors import RetryableError
from torchrelay.protocol.kube import kube_names as kube

HOME = "torchrelay-system"
SPEC = {"policy": "auto", "fallback": list(kube.FALLBACKS), "respawnLimit": 3, "spares": 1}
"""Of the job of `World`."""


async def seen(w: World) -> None:
    """The mirror catches up."""
    for found in w.api.all(PODS):
        pod = read_pod(found)
        assert pod is not None
        w.ledger.pods[pod.uid] = pod
    gone = w.ledger.pods.keys() - {p["metadata"]["uid"] for p in w.api.all(PODS)}
    for uid in gone:
        del w.ledger.pods[uid]


@pytest.mark.parametrize("kind", [TRAINING_JOBS, SPARE_POOLS])
def test_what_somebody_has_made_in_between_is_taken(kind: object) -> None:
    async def test(w: World) -> None:
        specs = {"TrainingJob": SPEC, "SparePool": {"job": "llama", "spares": 2}}
        made = {"metadata": {"name": "llama", "namespace": "team"}, "spec": specs[kind.name]}  # type: ignore[attr-defined]  # a stand-in
        uid = w.api.put(kind, made)["metadata"]["uid"]  # type: ignore[arg-type]  # a stand-in
        w.api.hidden = {kind.name}  # type: ignore[attr-defined]  # a stand-in
        w.begin()
        await w.keeper.tend(w.run)
        found = w.api.named(kind, "llama")  # type: ignore[arg-type]  # a stand-in
        assert (found["metadata"]["uid"], found["spec"]) == (uid, made["spec"])
        assert len(w.spares()) == (2 if kind is SPARE_POOLS else 1)

    in_world(test)


def test_of_two_controllers_that_make_the_authority_both_have_the_same() -> None:
    async def test(w: World) -> None:
        first = await open_authority(w.api, HOME)  # type: ignore[arg-type]  # a stand-in
        w.api.hidden = {SECRETS.name}
        second = await open_authority(w.api, HOME)  # type: ignore[arg-type]  # a stand-in
        published = w.api.named(CONFIG_MAPS, kube.CA_CONFIG_MAP, HOME)["data"][kube.CA_KEY].encode()
        told = (first.authority, second.authority, published)
        assert len({x509.load_pem_x509_certificate(pem).public_key().public_numbers() for pem in told}) == 1

    in_world(test)


def test_a_spare_whose_making_was_not_answered_is_no_second_one_for_long() -> None:
    async def test(w: World) -> None:
        w.begin()
        w.api.put(TRAINING_JOBS, {"metadata": {"name": "llama", "namespace": "team"}, "spec": SPEC})
        w.api.put(SPARE_POOLS, {"metadata": {"name": "llama", "namespace": "team"}, "spec": {"spares": 1}})
        w.api.answers_lost = 1
        with pytest.raises(RetryableError):
            await w.keeper.tend(w.run)
        await w.keeper.tend(w.run)  # the mirror has not seen it yet
        await seen(w)
        assert len(w.spares()) == 2
        await w.keeper.tend(w.run)
        await seen(w)
        assert len(w.spares()) == 1

    in_world(test)


@pytest.mark.parametrize("lost", [1, 2])
def test_a_migration_whose_writing_was_not_answered_is_written_once_and_whole(lost: int) -> None:
    async def test(w: World) -> None:
        w.begin()
        await w.keeper.tend(w.run)
        w.run.story.take(e.to_job_event(e.MigrationStarted("m1", "unplanned", 1, "killed", 1), 1000.0))
        w.api.answers_lost = lost
        for _ in range(lost):
            with pytest.raises(RetryableError):
                await w.status_writer.write(w.run)
        await w.status_writer.write(w.run)
        (found,) = w.api.all(MIGRATIONS)
        assert (found["spec"]["rank"], found["status"]["reason"]) == (1, "killed")

    in_world(test)
