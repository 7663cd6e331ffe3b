"""A launcher asks whether it is to begin: the ledger knows its job."""

from __future__ import annotations

from typing import Any

import pytest
from support.kube_world import KEY, World, in_world, manifest

from torchrelay.controller.kube.cluster.pods import Pod
from torchrelay.controller.kube.jobs.remembered import Remembered
from torchrelay.controller.restart.fallen import Fallen
from torchrelay.protocol.errors import RefusedError, RetryableError
from torchrelay.protocol.security.pod_tls import PodIdentity


def identity(pod: Pod) -> PodIdentity:
    return PodIdentity(pod.key.namespace, pod.name, pod.uid)


def test_a_launcher_begins_until_the_job_is_protected_and_parks_from_then_on() -> None:
    async def test(w: World) -> None:
        pod = identity(w.pod("llama-0"))
        assert not (await w.ledger.may_launch(pod)).spare
        w.begin()
        w.run.core.tick(1.0)
        assert w.run.core.job.protection == "on"
        assert (await w.ledger.may_launch(pod)).spare

    in_world(test)


def test_of_a_job_that_is_not_there_it_begins() -> None:
    async def test(w: World) -> None:
        run = w.ledger.runs.pop(KEY)
        w.ledger.over.append(run)
        assert not (await w.ledger.may_launch(identity(w.pod("llama-0")))).spare

    in_world(test)


def test_a_controller_that_is_new_to_a_job_that_trains_cannot_say_yet() -> None:
    async def test(w: World) -> None:
        w.ledger.over.append(w.ledger.runs.pop(KEY))
        w.remembered = Remembered({1: f"{w.pod('llama-1').agent}.1"})
        with pytest.raises(RetryableError, match="none of its agents"):
            await w.ledger.may_launch(identity(w.pod("llama-0")))
        w.remembered = Remembered({0: "llama-0:gone.1"})
        assert not (await w.ledger.may_launch(identity(w.pod("llama-0")))).spare

    in_world(test)


def test_a_pod_of_no_job_is_refused() -> None:
    async def test(w: World) -> None:
        with pytest.raises(RefusedError):
            await w.ledger.may_launch(PodIdentity("team", "other", "x"))

    in_world(test)


def end(w: World, exit_code: int) -> None:
    w.begin()
    w.run.core.tick(1.0)
    w.run.relay.end(exit_code, "all ranks are done")


def test_what_starts_late_in_a_pod_of_a_job_that_is_over_ends_as_that_did_and_a_new_pod_is_a_new_job() -> None:
    """At once: a launcher may ask in the moment after the end."""

    async def test(w: World) -> None:
        late = w.add(manifest("llama-3"))
        end(w, 0)
        assert (await w.ledger.may_launch(identity(late))).spare
        new = w.add(manifest("llama-4"))
        assert await w.ledger.run_for(identity(late), w.hello(late, 0)) is w.run
        assert not (await w.ledger.may_launch(identity(new))).spare
        assert await w.ledger.run_for(identity(new), w.hello(new, 0)) is not w.run

    in_world(test)


@pytest.mark.parametrize(
    ("exit_code", "kind", "uid", "is_late"),
    [
        (0, "Job", "u0", True),
        (0, "PyTorchJob", "u0", True),
        (1, "Job", "u0", False),
        (0, "Job", "u1", False),
        (0, "StatefulSet", "u0", False),
    ],
)
def test_a_pod_that_its_owner_makes_again_after_the_end(exit_code: int, kind: str, uid: str, is_late: bool) -> None:
    """Of an owner that is done when its pods are, training that went well is not begun again: it would wait for peers for good."""

    async def test(w: World) -> None:
        w.add(owned(manifest("llama-1"), kind, "u0"))
        end(w, exit_code)
        pod = w.add(owned(manifest("llama-5"), kind, uid))
        assert (await w.ledger.may_launch(identity(pod))).spare == is_late
        assert (await w.ledger.run_for(identity(pod), w.hello(pod, 1)) is w.run) == is_late

    in_world(test)


def owned(pod: dict[str, Any], kind: str, uid: str) -> dict[str, Any]:
    pod["metadata"]["ownerReferences"] = [{"kind": kind, "name": "llama", "uid": uid, "controller": True}]
    return pod


def test_while_it_is_decided_whether_the_job_begins_again_nobody_meets_the_others() -> None:
    async def test(w: World) -> None:
        w.begin()
        w.run.core.tick(1.0)
        w.run.core._parts.ending.fallen = Fallen(137, "rank 1 is lost", 1)
        assert (await w.ledger.may_launch(identity(w.pod("llama-1")))).spare

    in_world(test)
