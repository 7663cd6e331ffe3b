"""Who may do what: what is needed, and nothing besides."""

from __future__ import annotations

from typing import Any

import pytest
from support.rendered_chart import EVERYWHERE, Grant, grants, may, render_deploy
from support.rights import CONTROLLER, FOR_THE_CONTROLLER, HOME, JOBS, NOT_FOR_THE_CONTROLLER, WEBHOOK

from torchrelay.protocol.kube.kube_names import CONTROLLER_LEASE


def of(account: str, values: dict[str, Any] | None = None) -> set[Grant]:
    return grants(render_deploy.render(values or {}), account)


def test_nobody_has_a_verb_or_a_resource_that_opens_everything() -> None:
    for account in (CONTROLLER, WEBHOOK):
        for grant in of(account):
            assert grant.verb not in {"*", "escalate", "bind", "impersonate", "deletecollection"}, grant
            assert "*" not in (grant.group, grant.resource), grant
            assert grant.resource not in {
                "pods/exec",
                "pods/attach",
                "pods/ephemeralcontainers",
                "serviceaccounts/token",
            }


def test_the_webhook_may_keep_its_certificate_and_tell_of_it_and_that_is_all() -> None:
    assert of(WEBHOOK) == {
        Grant(HOME, "", "secrets", "get", "torchrelay-webhook-cert"),
        Grant(HOME, "", "secrets", "patch", "torchrelay-webhook-cert"),
        Grant(EVERYWHERE, "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "get", "torchrelay"),
        Grant(EVERYWHERE, "admissionregistration.k8s.io", "mutatingwebhookconfigurations", "patch", "torchrelay"),
    }


def test_with_certificates_of_others_the_webhook_may_do_nothing_at_all() -> None:
    assert of(WEBHOOK, {"webhook": {"certificates": "cert-manager"}}) == set()


@pytest.mark.parametrize(("verb", "resource", "namespace", "name"), NOT_FOR_THE_CONTROLLER)
def test_the_controller_may_not(verb: str, resource: str, namespace: str, name: str) -> None:
    assert not may(of(CONTROLLER), verb, resource, namespace, name)


@pytest.mark.parametrize(("verb", "resource", "namespace", "name"), FOR_THE_CONTROLLER)
def test_the_controller_may(verb: str, resource: str, namespace: str, name: str) -> None:
    assert may(of(CONTROLLER), verb, resource, namespace, name)


def test_a_controller_of_one_namespace_sees_no_pods_of_others() -> None:
    given = of(CONTROLLER, {"controller": {"watchNamespace": "team"}})
    assert may(given, "list", "pods", "team")
    for resource in ("pods", "events", *(f"torchrelay.dev/{r}" for r in JOBS)):
        assert not may(given, "list", resource, "other")
        assert not may(given, "create", resource, "other")
    assert {g.resource for g in given if g.namespace == EVERYWHERE} == {
        "nodes",
        "tokenreviews",
        "quarantines",
        "quarantines/status",
    }


def test_training_pods_need_no_right_at_all() -> None:
    objects = render_deploy.render({})
    subjects = {s["name"] for o in objects for s in o.get("subjects", [])}
    assert subjects == {CONTROLLER, WEBHOOK}


def test_the_role_for_the_dashboard_leads_to_pods_at_home_and_nobody_has_it() -> None:
    objects = render_deploy.render({})
    (role,) = (o for o in objects if o["metadata"]["name"] == "torchrelay-dashboard")
    assert (role["kind"], role["metadata"]["namespace"]) == ("Role", HOME)
    rights = {(r, v) for rule in role["rules"] for r in rule["resources"] for v in rule["verbs"]}
    assert rights == {("leases", "get"), ("pods", "get"), ("pods/portforward", "get"), ("pods/portforward", "create")}
    (lease,) = (rule for rule in role["rules"] if "leases" in rule["resources"])
    assert lease["resourceNames"] == [CONTROLLER_LEASE]
    assert not [o for o in objects if o.get("roleRef", {}).get("name") == "torchrelay-dashboard"]
    off = render_deploy.render({"dashboard": {"enabled": False}})
    assert "torchrelay-dashboard" not in {o["metadata"]["name"] for o in off}


def test_who_edits_a_namespace_may_ask_for_a_migration_but_not_write_what_was_found() -> None:
    roles = {o["metadata"]["name"]: o for o in render_deploy.render({}) if o["kind"] == "ClusterRole"}
    (rule,) = roles["torchrelay-edit"]["rules"]
    assert "migrations" in rule["resources"]
    assert "trainingjobs" not in rule["resources"]
    assert not any(resource.endswith("/status") for resource in rule["resources"])
    assert roles["torchrelay-view"]["rules"][0]["verbs"] == ["get", "list", "watch"]
