"""The budget that holds evictions off; the API is in memory."""

from __future__ import annotations

import pytest
from support.kube_world import World, in_world
from support.rendered_chart import render_deploy

from torchrelay.controller.kube.client.api import BUDGETS, BUDGETS_BETA, CLUSTER_ROLES, ROLES, TRAINING_JOBS
from torchrelay.controller.kube.reconcilers.budget import Budgets
from torchrelay.controller.kube.settings import ClusterSettings
from torchrelay.protocol.names import NO_RANK

SETTINGS = ClusterSettings("torchrelay-system", "controller-0")


async def protected(w: World) -> None:
    """With one warm spare."""
    w.begin()
    await w.keeper.tend(w.run)
    (spare,) = w.spares()
    w.run.core.attach(w.hello(spare, NO_RANK), 1.0)


def test_a_budget_is_made_once_belongs_to_the_job_and_goes_with_the_protection() -> None:
    async def test(w: World) -> None:
        await protected(w)
        budgets, owner = Budgets(w.api, SETTINGS), w.api.named(TRAINING_JOBS, "llama")  # type: ignore[arg-type]  # a stand-in
        for _ in range(2):
            await budgets.tend(w.run, owner, False)
        (made,) = w.api.all(BUDGETS)
        assert made["spec"]["selector"] == {"matchLabels": {"torchrelay.dev/job": "llama"}}
        assert made["metadata"]["ownerReferences"][0]["uid"] == owner["metadata"]["uid"]
        assert w.api.asked["PodDisruptionBudget"] == 1
        w.run.core.end_job(0, "done")
        await budgets.tend(w.run, owner, False)
        assert w.api.all(BUDGETS) == []

    in_world(test)


def test_one_that_another_controller_has_made_is_as_good_and_can_be_taken_away() -> None:
    async def test(w: World) -> None:
        await protected(w)
        owner = w.api.named(TRAINING_JOBS, "llama")
        for _ in range(2):
            await Budgets(w.api, SETTINGS).tend(w.run, owner, False)  # type: ignore[arg-type]  # a stand-in
        assert len(w.api.all(BUDGETS)) == 1
        w.run.core.end_job(0, "done")
        await Budgets(w.api, SETTINGS).tend(w.run, owner, False)  # type: ignore[arg-type]  # a stand-in
        assert w.api.all(BUDGETS) == []

    in_world(test)


def test_an_older_cluster_is_asked_in_its_own_version() -> None:
    async def test(w: World) -> None:
        await protected(w)
        w.api.unknown = {BUDGETS.version}
        await Budgets(w.api, SETTINGS).tend(w.run, w.api.named(TRAINING_JOBS, "llama"), False)  # type: ignore[arg-type]  # a stand-in
        (made,) = w.api.all(BUDGETS_BETA)
        assert made["apiVersion"] == "policy/v1beta1"

    in_world(test)


def test_ranks_that_cannot_leave_hold_a_drain_up_only_so_long() -> None:
    async def test(w: World) -> None:
        await protected(w)
        budgets, owner = Budgets(w.api, SETTINGS), w.api.named(TRAINING_JOBS, "llama")  # type: ignore[arg-type]  # a stand-in
        await budgets.tend(w.run, owner, True)
        assert w.api.all(BUDGETS)
        budgets._since_s[w.run.key] -= w.run.options.spare_wait_s + 1.0
        await budgets.tend(w.run, owner, True)
        assert w.api.all(BUDGETS) == []

    in_world(test)


@pytest.mark.parametrize("watched", ["*", "team"])
def test_a_budget_goes_when_torchrelay_is_uninstalled(watched: str) -> None:
    async def test(w: World) -> None:
        await protected(w)
        settings = ClusterSettings("torchrelay-system", "controller-0", watched)
        objects = render_deploy.render({"controller": {"watchNamespace": "" if watched == "*" else watched}})
        installed = [
            o for o in objects if o["kind"] in ("Role", "ClusterRole") and o["metadata"]["name"] == settings.role
        ]
        (role,) = installed
        kind = CLUSTER_ROLES if watched == "*" else ROLES
        assert role["kind"] == kind.name
        w.api.put(kind, role)
        await Budgets(w.api, settings).tend(w.run, w.api.named(TRAINING_JOBS, "llama"), False)  # type: ignore[arg-type]  # a stand-in
        w.api.collect()
        assert len(w.api.all(BUDGETS)) == 1
        w.api.remove(kind, settings.role)
        w.api.collect()
        assert w.api.all(BUDGETS) == []

    in_world(test)


def test_one_of_an_installation_that_is_no_more_is_made_anew() -> None:
    async def test(w: World) -> None:
        await protected(w)
        owner = w.api.named(TRAINING_JOBS, "llama")
        for number in range(2):
            role = {"metadata": {"name": SETTINGS.role, "uid": f"role-{number}"}}
            w.api.put(CLUSTER_ROLES, role)
            await Budgets(w.api, SETTINGS).tend(w.run, owner, False)  # type: ignore[arg-type]  # a stand-in
        w.api.collect()
        assert [o["uid"] for b in w.api.all(BUDGETS) for o in b["metadata"]["ownerReferences"]] == ["role-1"]

    in_world(test)


def test_a_budget_is_taken_away_though_the_pods_and_the_resource_of_the_job_went_first() -> None:
    async def test(w: World) -> None:
        await protected(w)
        budgets = Budgets(w.api, SETTINGS)  # type: ignore[arg-type]  # a stand-in
        await budgets.tend(w.run, w.api.named(TRAINING_JOBS, "llama"), False)
        w.run.core.end_job(143, "deleted")
        w.ledger.pods.clear()
        w.ledger.drop_old()
        assert w.ledger.knows(w.run)
        await budgets.tend(w.run, None, False)
        assert w.api.all(BUDGETS) == []
        w.ledger.drop_old()
        assert not w.ledger.knows(w.run)

    in_world(test)
