from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from torchrelay.protocol import names
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.annotations import PodAnnotations
from torchrelay.webhook.injection.additions import is_guaranteed
from torchrelay.webhook.injection.inject import injected, patch
from torchrelay.webhook.injection.training_env import training_env
from torchrelay.webhook.settings import AgentSettings, WebhookSettings

AUTHORITY = "PEM"
NATIVE = WebhookSettings(sidecar=kube.NATIVE)


def pod(name: str) -> dict[str, Any]:
    return yaml.safe_load((Path(__file__).parent / "pods" / f"{name}.yaml").read_text())


def made(before: dict[str, Any], settings: WebhookSettings = NATIVE) -> dict[str, Any]:
    new, decision = injected(before, settings, AUTHORITY)
    assert not decision.denied
    return new


def container(pod: dict[str, Any], name: str) -> dict[str, Any]:
    return next(c for c in [*pod["spec"]["containers"], *pod["spec"].get("initContainers", [])] if c["name"] == name)


def resolved(env: list[dict[str, Any]], sources: dict[str, str]) -> dict[str, str]:
    """What the kubelet makes of an environment, as far as it matters here."""
    values: dict[str, str] = {}
    for entry in env:
        text = sources.get(entry["name"], "") if "valueFrom" in entry else entry.get("value", "")
        for name, value in values.items():
            text = text.replace(f"$({name})", value)
        values[entry["name"]] = text
    return values


def test_a_pod_that_does_not_ask_is_left_alone() -> None:
    plain = pod("bare")
    for given in ({}, {kube.INJECT: "false"}, {kube.SPARES: "nonsense"}):
        plain["metadata"]["annotations"] = given
        assert patch(plain, NATIVE, AUTHORITY).patch == []


def test_a_wrong_annotation_is_denied_with_a_sentence() -> None:
    wrong = pod("bare")
    wrong["metadata"]["annotations"][kube.POLICY] = "maybe"
    decision = patch(wrong, NATIVE, AUTHORITY)
    assert decision.denied == 'torchrelay.dev/policy has to be one of auto, observe, planned-only, not "maybe"'
    assert decision.patch == []


def test_a_label_that_no_object_could_be_named_after_is_denied_with_a_sentence() -> None:
    wrong = pod("bare")
    wrong["metadata"].setdefault("labels", {})[kube.JOB] = "My_Job"
    assert f'the label {kube.JOB} is "My_Job"' in patch(wrong, NATIVE, AUTHORITY).denied


def test_a_container_that_is_not_there_is_denied_with_those_that_are() -> None:
    wrong = pod("container-named")
    wrong["metadata"]["annotations"][kube.CONTAINER] = "third"
    assert (
        patch(wrong, NATIVE, AUTHORITY).denied
        == 'torchrelay.dev/container names "third", and the pod has first, second'
    )


def test_without_the_controllers_authority_a_pod_is_left_alone() -> None:
    new, decision = injected(pod("bare"), NATIVE, "")
    assert "certificate authority" in decision.notes[0]
    assert new["spec"] == pod("bare")["spec"]


def test_pythonpath_is_chained_and_can_be_put_back_as_it_was() -> None:
    before = container(pod("pythonpath"), "main")["env"]
    env, _ = training_env(before, PodAnnotations())
    values = resolved(env, {})
    assert values["PYTHONPATH"] == f"{kube.SITE_FOLDER}:/srv/lib:/extra"
    assert values[names.ENV_PYTHONPATH_WAS] == resolved(before, {})["PYTHONPATH"]
    # What refers to it gets ours too: it is on every other path that Python is given.
    assert values["TOOLS"] == f"{kube.SITE_FOLDER}:/srv/lib:/extra:/tools"


def test_pythonpath_from_a_configmap_is_chained() -> None:
    before = container(pod("pythonpath-from-configmap"), "main")["env"]
    env, _ = training_env(before, PodAnnotations())
    values = resolved(env, {names.ENV_PYTHONPATH_WAS: "/from/map"})
    assert values["PYTHONPATH"] == f"{kube.SITE_FOLDER}:/from/map"


def test_an_empty_pythonpath_does_not_put_the_current_folder_on_the_path() -> None:
    env, _ = training_env([{"name": "PYTHONPATH", "value": ""}], PodAnnotations())
    assert resolved(env, {})["PYTHONPATH"] == kube.SITE_FOLDER


def test_of_several_entries_the_last_one_counts() -> None:
    before = [{"name": "PYTHONPATH", "value": "/a"}, {"name": "PYTHONPATH", "value": "$(PYTHONPATH):/b"}]
    env, _ = training_env(before, PodAnnotations())
    assert resolved(env, {})["PYTHONPATH"] == f"{kube.SITE_FOLDER}:/a:/b"


@pytest.mark.parametrize("original", [None, "/mine"])
def test_whoever_comes_after_and_goes_in_front_is_chained_too(original: str | None) -> None:
    # As OpenTelemetry's operator does it: a sitecustomize of its own in front, which loads no other.
    env, _ = training_env([{"name": "PYTHONPATH", "value": original}] if original else [], PodAnnotations())
    for entry in env:
        if entry["name"] == "PYTHONPATH":
            entry["value"] = f"/otel:{entry['value']}:/otel2"
    again, _ = training_env(env, PodAnnotations())
    values = resolved(again, {})
    mine = f":{original}" if original else ""
    assert values["PYTHONPATH"] == f"{kube.SITE_FOLDER}:/otel{mine}:/otel2"
    assert values[names.ENV_PYTHONPATH_WAS] == f"/otel{mine}:/otel2"
    assert training_env(again, PodAnnotations())[0] == again


@pytest.mark.parametrize("mounts_left", [0, 1])
def test_what_somebody_took_away_is_put_back_when_the_webhook_is_asked_again(mounts_left: int) -> None:
    whole = made(pod("bare"))
    robbed = copy.deepcopy(whole)
    main = container(robbed, "main")
    main["env"] = [e for e in main["env"] if e["name"] not in ("PYTHONPATH", kube.ENV_ASK)]
    main["volumeMounts"] = main["volumeMounts"][:mounts_left]
    again = made(robbed)
    assert {e["name"]: e for e in container(again, "main")["env"]} == {
        e["name"]: e for e in container(whole, "main")["env"]
    }
    assert container(again, "main")["volumeMounts"] == container(whole, "main")["volumeMounts"]
    assert [c["name"] for c in again["spec"]["initContainers"]] == [c["name"] for c in whole["spec"]["initContainers"]]


def test_what_the_api_server_fills_in_is_no_change() -> None:
    whole = made(pod("bare"))
    for entry in container(whole, "main")["env"]:
        entry.get("valueFrom", {}).get("fieldRef", {}).pop("apiVersion", None)
    assert patch(whole, NATIVE, AUTHORITY) == patch(made(pod("bare")), NATIVE, AUTHORITY)


def test_a_clone_that_became_a_spare_keeps_its_role() -> None:
    clone = made(pod("job"))
    clone["metadata"]["labels"][kube.ROLE] = kube.SPARE
    container(clone, "train")["env"].append({"name": names.ENV_SPARE, "value": "1"})
    assert patch(clone, NATIVE, AUTHORITY).patch == []


@pytest.mark.parametrize("name", ["restricted", "restricted-without-user"])
def test_what_is_added_fits_the_restricted_pod_security_level(name: str) -> None:
    new = made(pod(name))
    of_pod = new["spec"]["securityContext"]
    for added in (kube.INIT_CONTAINER, kube.AGENT_CONTAINER):
        context = container(new, added)["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"]["type"] == "RuntimeDefault"
        assert {**of_pod, **context}["runAsNonRoot"] is True
        assert {**of_pod, **context}.get("runAsUser") != 0
    allowed = {
        "emptyDir",
        "projected",
        "configMap",
        "secret",
        "persistentVolumeClaim",
        "downwardAPI",
        "csi",
        "ephemeral",
    }
    for volume in new["spec"]["volumes"]:
        assert set(volume) - {"name"} <= allowed
    assert not any(new["spec"].get(k) for k in ("hostPID", "hostNetwork", "hostIPC"))


def test_the_agent_runs_as_the_user_of_training() -> None:
    of_container = container(made(pod("container-named")), kube.AGENT_CONTAINER)["securityContext"]
    assert (of_container["runAsUser"], of_container["runAsGroup"]) == (1000, 3000)
    of_pod = container(made(pod("restricted")), kube.AGENT_CONTAINER)["securityContext"]
    assert of_pod["runAsUser"] == 1000
    nobody_said = container(made(pod("bare")), kube.AGENT_CONTAINER)["securityContext"]
    assert (nobody_said["runAsUser"], "runAsNonRoot" in nobody_said) == (0, False)


def test_a_container_that_is_root_against_its_pods_rule_has_an_agent_that_is_too() -> None:
    odd = pod("restricted")
    odd["spec"]["containers"][0]["securityContext"] = {"runAsUser": 0, "runAsNonRoot": False}
    context = container(made(odd), kube.AGENT_CONTAINER)["securityContext"]
    assert (context["runAsUser"], context["runAsNonRoot"]) == (0, False)


@pytest.mark.parametrize("name", ["trainjob", "restricted"])
def test_a_guaranteed_pod_stays_one(name: str) -> None:
    assert is_guaranteed(pod(name))
    assert is_guaranteed(made(pod(name)))


def test_a_pod_with_one_budget_for_all_is_not_asked_for_more() -> None:
    budget = pod("restricted")
    budget["spec"]["resources"] = {"limits": {"cpu": "2", "memory": "4Gi"}}
    assert container(made(budget), kube.AGENT_CONTAINER)["resources"] == {}


def test_the_agent_sees_the_checkpoints_but_cannot_change_them() -> None:
    mounts = container(made(pod("volumes-nearby")), kube.AGENT_CONTAINER)["volumeMounts"]
    assert {"name": "deep", "mountPath": "/scratch/deep", "subPath": "mine", "readOnly": True} in mounts
    assert all(m["name"] != "scratch" for m in mounts)


def test_only_the_agent_gets_the_token() -> None:
    for name in ("bare", "istio", "raycluster"):
        new = made(pod(name))
        holders = [
            c["name"]
            for c in [*new["spec"]["containers"], *new["spec"]["initContainers"]]
            if any(m["name"] == kube.TOKEN_VOLUME for m in c.get("volumeMounts", []))
        ]
        assert holders == [kube.AGENT_CONTAINER]


def test_processes_are_shared_unless_the_node_shares_its_own_or_the_user_says_no() -> None:
    assert made(pod("bare"))["spec"]["shareProcessNamespace"] is True
    assert "shareProcessNamespace" not in made(pod("volumes-nearby"))["spec"]
    new, decision = injected(pod("own-settings"), NATIVE, AUTHORITY)
    assert new["spec"]["shareProcessNamespace"] is False
    assert any("shareProcessNamespace" in note for note in decision.notes)


@pytest.mark.parametrize(
    ("policy", "noted"), [(None, True), ("ClusterFirst", True), ("ClusterFirstWithHostNet", False)]
)
def test_on_the_hosts_network_a_dns_policy_that_hides_the_controller_is_said(policy: str | None, noted: bool) -> None:
    hosted = pod("bare")
    hosted["spec"] |= {"hostNetwork": True, **({"dnsPolicy": policy} if policy else {})}
    _, decision = injected(hosted, NATIVE, AUTHORITY)
    assert any("dnsPolicy" in note for note in decision.notes) == noted


def test_a_cluster_can_bring_torchrelay_in_its_own_way() -> None:
    mount = {"name": "src", "mountPath": "/src", "readOnly": True}
    agent = AgentSettings(
        image="localhost/busybox:1",
        commandPrefix=["/src/venv/bin/python", "-u"],
        env=[{"name": "LANG", "value": "C.UTF-8"}],
        volumes=[{"name": "src", "hostPath": {"path": "/src"}}],
        volumeMounts=[mount],
    )
    new = made(pod("bare"), dataclasses.replace(NATIVE, agent=agent))
    for name, module in (
        (kube.INIT_CONTAINER, "torchrelay.agent.install_shim"),
        (kube.AGENT_CONTAINER, "torchrelay.agent.pod"),
    ):
        added = container(new, name)
        assert added["command"][:4] == ["/src/venv/bin/python", "-u", "-m", module]
        assert mount in added["volumeMounts"]
        assert {"name": "LANG", "value": "C.UTF-8"} in added["env"]
    assert agent.volumes[0] in new["spec"]["volumes"]
    assert mount not in container(new, "main")["volumeMounts"]


def test_a_static_pod_is_left_alone() -> None:
    mirror = pod("bare")
    mirror["metadata"]["annotations"]["kubernetes.io/config.mirror"] = "x"
    assert patch(mirror, NATIVE, AUTHORITY).patch == []


def test_copies_have_a_volume_in_memory_that_training_and_the_agent_share() -> None:
    given = pod("bare")
    given["metadata"]["annotations"] |= {kube.BUDDY_EVERY: "8", kube.BUDDY_SYNC: "true"}
    new = made(given)
    (volume,) = (v for v in new["spec"]["volumes"] if v["name"] == kube.KEPT_VOLUME)
    assert volume == {"name": kube.KEPT_VOLUME, "emptyDir": {"medium": "Memory"}}
    for name in ("main", kube.AGENT_CONTAINER):
        assert {"name": kube.KEPT_VOLUME, "mountPath": kube.KEPT_FOLDER} in container(new, name)["volumeMounts"]
    env = resolved(container(new, "main")["env"], {})
    assert (env[names.ENV_BUDDY_EVERY], env[names.ENV_BUDDY_SYNC], env[names.ENV_KEPT]) == ("8", "1", kube.KEPT_FOLDER)
    assert patch(new, NATIVE, AUTHORITY).patch == []


@pytest.mark.parametrize("policy", [kube.POLICY_OBSERVE, kube.POLICY_PLANNED_ONLY])
def test_where_no_loss_is_made_good_no_copies_are_made_and_the_notes_say_so(policy: str) -> None:
    given = pod("bare")
    given["metadata"]["annotations"] |= {kube.BUDDY_EVERY: "8", kube.POLICY: policy}
    new = made(given)
    assert kube.KEPT_VOLUME not in str(new["spec"])
    assert names.ENV_BUDDY_EVERY not in str(new["spec"])
    assert f"has no effect with torchrelay.dev/policy {policy}" in new["metadata"]["annotations"][kube.NOTES]


def test_a_pod_that_was_prepared_before_there_were_copies_is_not_given_a_mount_without_a_volume() -> None:
    old = made(pod("bare"))
    old["metadata"]["annotations"][kube.BUDDY_EVERY] = "8"
    assert patch(old, NATIVE, AUTHORITY).patch == []


def test_agents_answer_prometheus_where_they_are_told_to_and_never_on_the_hosts_network() -> None:
    settings = dataclasses.replace(NATIVE, agent=AgentSettings(metricsPort=kube.AGENT_METRICS_PORT))
    before = pod("job")
    agent = container(made(before, settings), kube.AGENT_CONTAINER)
    assert agent["ports"] == [{"name": kube.AGENT_METRICS_PORT_NAME, "containerPort": kube.AGENT_METRICS_PORT}]
    assert {"name": kube.ENV_METRICS_PORT, "value": str(kube.AGENT_METRICS_PORT)} in agent["env"]
    assert len(kube.AGENT_METRICS_PORT_NAME) <= 15
    before["spec"]["hostNetwork"] = True
    for without in (made(before, settings), made(pod("job"))):
        agent = container(without, kube.AGENT_CONTAINER)
        assert "ports" not in agent
        assert kube.ENV_METRICS_PORT not in {e["name"] for e in agent["env"]}


def test_agents_and_ranks_write_json_with_the_jobs_id_where_the_cluster_wants_that() -> None:
    wanted = dataclasses.replace(NATIVE, agent=AgentSettings(logFormat="json", logLevel="debug"))
    new = made(pod("bare"), wanted)
    of_pod = {kube.ENV_NAMESPACE: "team", kube.ENV_JOB: "llama"}
    agent = resolved(container(new, kube.AGENT_CONTAINER)["env"], of_pod)
    assert (agent[names.ENV_LOG], agent[names.ENV_LOG_LEVEL]) == ("json team/llama", "debug")
    of_training = {names.ENV_LOG_NAMESPACE: "team", names.ENV_LOG_JOB: "llama"}
    training = resolved(new["spec"]["containers"][0]["env"], of_training)
    assert training[names.ENV_LOG] == "json team/llama"
    assert {names.ENV_LOG_NAMESPACE, names.ENV_LOG_JOB, names.ENV_LOG} <= set(
        names.SHIM_ENV
    )  # the script sees none of them
    assert made(new, wanted) == new


def test_lines_are_text_unless_the_cluster_wants_json() -> None:
    new = made(pod("bare"))
    for name in (kube.AGENT_CONTAINER, new["spec"]["containers"][0]["name"]):
        assert not {names.ENV_LOG, names.ENV_LOG_LEVEL} & {e["name"] for e in container(new, name)["env"]}
