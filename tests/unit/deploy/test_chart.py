"""The Helm chart, through Helm's own code, and the kustomize base that is made of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml
from support import kube_schema
from support.rendered_chart import ROOT, render_deploy

from torchrelay.controller.kube.cluster.platform_policy import parse_platform_policy
from torchrelay.controller.kube.settings import ClusterSettings
from torchrelay.dashboard.cluster.__main__ import Settings as DashboardSettings
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.names import ENV_LOG, ENV_LOG_LEVEL
from torchrelay.protocol.notify.notices import NoticeKind
from torchrelay.webhook.serving.server import dns_names
from torchrelay.webhook.settings import WebhookSettings, parse

CHART = ROOT / "deploy" / "chart"
VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "cert-manager": {"webhook": {"certificates": "cert-manager", "replicas": 1}},
    "one-namespace": {
        "controller": {"watchNamespace": "team"},
        "networkPolicy": {"jobNamespaces": ["team"]},
        "dashboard": {"enabled": False},
    },
    "everything": {
        "nameOverride": "relay",
        "image": {"registry": "r.example/x", "tag": "v9", "pullPolicy": "Always", "pullSecrets": [{"name": "pull"}]},
        "namespace": {"create": True},
        "controller": {
            "image": {"name": "c", "digest": f"sha256:{'0' * 64}"},
            "platformPolicy": {
                "mostSpares": 8,
                "namespaces": {"team": {"mode": "observe"}},
                "neverTouchNodes": {"a": "b"},
            },
            "nodeSelector": {"a": "b"},
            "tolerations": [{"operator": "Exists"}],
            "priorityClassName": "high",
            "env": [{"name": "A", "value": "b"}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        },
        "webhook": {
            "env": [{"name": "A", "value": "b"}],
            "tolerations": [{"operator": "Exists"}],
            "nodeSelector": {"a": "b"},
        },
        "agent": {
            "volumes": [{"name": "py", "hostPath": {"path": "/opt/py"}}],
            "sidecar": "classic",
            "prepull": {"enabled": True, "nodeSelector": {"gpu": "yes"}, "tolerations": [{"operator": "Exists"}]},
        },
        "metrics": {
            "enabled": True,
            "scraperNamespaces": ["monitoring"],
            "serviceMonitor": {"enabled": True, "interval": "30s", "labels": {"release": "prometheus"}},
            "podMonitor": {"enabled": True},
            "rules": {"enabled": True, "labels": {"release": "prometheus"}},
            "dashboard": {"enabled": True},
        },
        "logs": {"format": "json", "level": "debug"},
        "notifications": {
            "secret": "hook",
            "only": ["ended", "migrated"],
            "format": "slack",
            "cluster": "blue",
            "port": 8443,
        },
        "rbac": {"aggregate": False},
    },
    "less": {"networkPolicy": {"create": False}, "webhook": {"matchConditions": False, "failurePolicy": "Fail"}},
}
NAMES = sorted(VALUES)
RELEASES = ("1.25", "1.29", "1.36")
CLUSTER_WIDE = {"Namespace", "ClusterRole", "ClusterRoleBinding", "MutatingWebhookConfiguration"}


def rendered(name: str) -> list[dict[str, Any]]:
    objects: list[dict[str, Any]] = render_deploy.render(VALUES[name], "system")
    return objects


def one(objects: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (found,) = (o for o in objects if o["kind"] == kind and o["metadata"]["name"] == name)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_helm_finds_nothing_to_complain_about(name: str) -> None:
    report = helm_python.lint(CHART, VALUES[name], strict=True, namespace="system")
    assert report["errors"] == []
    assert [m for m in report["messages"] if m["severity"] > 1] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"webhok": {}},
        {"webhook": {"replicas": 0}},
        {"webhook": {"certificates": "none"}},
        {"webhook": {"failurePolicy": "Maybe"}},
        {"agent": {"sidecar": "both"}},
        {"agent": {"command": []}},
        {"agent": {"runSizeLimit": "much"}},
        {"controller": {"image": {"name": "c", "digest": "sha256:1"}}},
        {"controller": {"resources": {"limit": {}}}},
        {"networkPolicy": {"apiServerPorts": [0]}},
        {"metrics": {"serviceMonitor": {"interval": "often"}}},
        {"logs": {"format": "xml"}},
        {"notifications": {"only": ["lunch"]}},
        {"notifications": {"port": 0}},
        {"logs": {"level": "loud"}},
        {"controller": {"platformPolicy": {"mostspares": 1}}},
        {"controller": {"platformPolicy": {"namespaces": {"a": {"mode": "off"}}}}},
    ],
)
def test_values_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with helm_python.Chart.load(CHART) as chart, pytest.raises(helm_python.HelmError):
        chart.validate_schema(wrong)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", NAMES)
def test_every_object_fits_the_schema_of_kubernetes(name: str, release: str) -> None:
    checked = 0
    for found in rendered(name):
        if found["apiVersion"].startswith(("cert-manager.io/", "monitoring.coreos.com/")):
            continue
        if release == "1.25":
            for webhook in found.get("webhooks", []):
                webhook.pop("matchConditions", None)  # API servers before 1.27 drop it
        kube_schema.check(found, release)
        checked += 1
    assert checked > 10


@pytest.mark.parametrize("name", NAMES)
def test_names_are_unique_and_namespaces_said(name: str) -> None:
    objects = rendered(name)
    keys = [(o["kind"], o["metadata"].get("namespace"), o["metadata"]["name"]) for o in objects]
    assert len(set(keys)) == len(keys)
    for found in objects:
        assert ("namespace" in found["metadata"]) == (found["kind"] not in CLUSTER_WIDE), found["metadata"]


@pytest.mark.parametrize("name", NAMES)
def test_what_refers_to_something_finds_it(name: str) -> None:
    objects = rendered(name)
    there = {(o["kind"], o["metadata"]["name"]) for o in objects}
    for found in objects:
        if "roleRef" in found:
            assert (found["roleRef"]["kind"], found["roleRef"]["name"]) in there
            for subject in found["subjects"]:
                assert (subject["kind"], subject["name"], subject["namespace"]) == (
                    "ServiceAccount",
                    subject["name"],
                    "system",
                )
                assert ("ServiceAccount", subject["name"]) in there
        if found["kind"] in ("Service", "NetworkPolicy", "PodDisruptionBudget"):
            spec = found["spec"]
            if found["kind"] == "Service":
                labels = spec.get("selector")  # the controller's has none: the leader writes its endpoint
            else:
                labels = (spec.get("podSelector") or spec["selector"]).get("matchLabels")
            pods = [o["spec"]["template"]["metadata"]["labels"] for o in objects if o["kind"] == "Deployment"]
            assert labels is None or sum(labels.items() <= pod.items() for pod in pods) == 1
        if found["kind"] == "Deployment":
            spec = found["spec"]["template"]["spec"]
            assert (
                found["spec"]["selector"]["matchLabels"].items()
                <= found["spec"]["template"]["metadata"]["labels"].items()
            )
            assert ("ServiceAccount", spec["serviceAccountName"]) in there
            volumes = {v["name"] for v in spec["volumes"]}
            assert {m["name"] for c in spec["containers"] for m in c["volumeMounts"]} <= volumes
        for webhook in found.get("webhooks", []):
            assert ("Service", webhook["clientConfig"]["service"]["name"]) in there


@pytest.mark.parametrize("name", NAMES)
def test_pods_of_torchrelay_itself_keep_to_the_restricted_level(name: str) -> None:
    for found in rendered(name):
        if found["kind"] != "Deployment":
            continue
        spec = found["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not any(spec.get(k) for k in ("hostNetwork", "hostPID", "hostIPC"))
        assert all("hostPath" not in v for v in spec["volumes"])
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert context["readOnlyRootFilesystem"] is True
            assert container["resources"]["limits"]["memory"]


def settings_of(objects: list[dict[str, Any]], name: str) -> WebhookSettings:
    return parse(yaml.safe_load(one(objects, "ConfigMap", name)["data"]["webhook.yaml"]), name)


@pytest.mark.parametrize("name", NAMES)
def test_the_webhook_understands_its_configuration_and_it_fits_what_else_there_is(name: str) -> None:
    objects = rendered(name)
    prefix = VALUES[name].get("nameOverride", "torchrelay")
    settings = settings_of(objects, f"{prefix}-webhook")
    registration = one(objects, "MutatingWebhookConfiguration", settings.server.configuration)
    webhook, requests = registration["webhooks"]
    assert requests["clientConfig"] == webhook["clientConfig"]
    service = webhook["clientConfig"]["service"]
    assert dns_names(settings.server)[0] == f"{service['name']}.{service['namespace']}.svc"
    assert service["path"] == "/mutate"
    ports = one(objects, "Deployment", f"{prefix}-webhook")["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert ports == [{"name": "https", "containerPort": settings.server.port}]
    relay = {p["name"]: p["port"] for p in one(objects, "Service", f"{prefix}-controller")["spec"]["ports"]}
    assert settings.controller.address == f"{prefix}-controller.system.svc:{relay['relay']}"
    assert settings.controller.enroll == f"{prefix}-controller.system.svc:{relay['enroll']}"
    assert (relay["relay"], relay["enroll"]) == (kube.RELAY_PORT, kube.ENROLL_PORT)
    own_certificates = settings.server.certificates == "self"
    assert own_certificates == any(
        o["metadata"]["name"] == settings.server.secret for o in objects if o["kind"] == "Secret"
    )
    assert own_certificates != any(o["kind"] == "Certificate" for o in objects)


def test_the_defaults_are_the_names_of_the_protocol() -> None:
    objects = render_deploy.render({})
    settings = settings_of(objects, "torchrelay-webhook")
    assert settings.server == WebhookSettings().server
    assert settings.controller == WebhookSettings().controller
    assert settings.agent.resources == WebhookSettings().agent.resources
    one(objects, "ConfigMap", kube.CA_CONFIG_MAP)
    one(objects, "Service", kube.CONTROLLER_SERVICE)


def test_a_pod_that_asks_for_nothing_never_waits_for_the_webhook() -> None:
    objects = rendered("defaults")
    webhook, requests = one(objects, "MutatingWebhookConfiguration", "torchrelay")["webhooks"]
    assert requests["failurePolicy"] == "Ignore"
    assert requests["rules"][0]["resources"] == ["migrations", "quarantines", "sparepools"]
    assert requests["rules"][0]["operations"] == ["CREATE", "UPDATE"]  # who deletes writes down why before
    (controller,) = (
        o for o in objects if o["kind"] == "ServiceAccount" and o["metadata"]["name"].endswith("-controller")
    )
    account = f"system:serviceaccount:{controller['metadata']['namespace']}:{controller['metadata']['name']}"
    assert requests["matchConditions"][0]["expression"] == f"request.userInfo.username != '{account}'"
    assert webhook["failurePolicy"] == "Ignore"
    assert webhook["timeoutSeconds"] <= 5
    assert webhook["reinvocationPolicy"] == "IfNeeded"
    assert webhook["sideEffects"] == "None"
    assert kube.INJECT in webhook["matchConditions"][0]["expression"]
    names = webhook["namespaceSelector"]["matchExpressions"][0]
    assert (names["operator"], set(names["values"]) >= {"kube-system", "system"}) == ("NotIn", True)
    assert "matchConditions" not in one(rendered("less"), "MutatingWebhookConfiguration", "torchrelay")["webhooks"][0]


def test_an_upgrade_has_new_replicas_ready_before_old_ones_go_and_agents_find_the_leader_alone() -> None:
    objects = rendered("defaults")
    spec = one(objects, "Deployment", "torchrelay-controller")["spec"]
    assert spec["replicas"] == 2
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}}
    container = spec["template"]["spec"]["containers"][0]
    ports = {p["name"]: p["containerPort"] for p in container["ports"]}
    for probe in ("readinessProbe", "livenessProbe"):
        assert ports[container[probe]["httpGet"]["port"]] == kube.READY_PORT
    assert "selector" not in one(objects, "Service", "torchrelay-controller")["spec"]
    env = {e["name"]: e for e in container["env"]}
    assert env["TORCHRELAY_POD_IP"]["valueFrom"] == {"fieldRef": {"fieldPath": "status.podIP"}}


@pytest.mark.parametrize("name", NAMES)
def test_the_leader_may_write_the_endpoint_of_the_service_that_it_is_told(name: str) -> None:
    objects = rendered(name)
    prefix = VALUES[name].get("nameOverride", "torchrelay")
    container = one(objects, "Deployment", f"{prefix}-controller")["spec"]["template"]["spec"]["containers"][0]
    (service,) = (e["value"] for e in container["env"] if e["name"] == "TORCHRELAY_SERVICE")
    one(objects, "Service", service)
    rules = one(objects, "Role", f"{prefix}-controller")["rules"]
    (named,) = (r for r in rules if r["resources"] == ["endpointslices"] and "resourceNames" in r)
    assert named["resourceNames"] == [f"{service}-ipv4", f"{service}-ipv6"]


def test_digests_go_before_tags() -> None:
    objects = rendered("everything")
    container = one(objects, "Deployment", "relay-controller")["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == f"r.example/x/c@sha256:{'0' * 64}"
    assert settings_of(objects, "relay-webhook").agent.image == "r.example/x/agent:v9"


def test_the_kustomize_base_is_as_the_chart_makes_it() -> None:
    for name, text in render_deploy.kustomize_files().items():
        assert (ROOT / "deploy" / "kustomize" / name).read_text() == text, "run scripts/render_deploy.py"


def test_the_kustomization_names_what_is_there() -> None:
    folder = ROOT / "deploy" / "kustomize"
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert sorted(kustomization["resources"]) == sorted(
        p.name for p in folder.glob("*.yaml") if p.name != "kustomization.yaml"
    )
    images = {
        c["image"].split(":")[0]
        for o in yaml.safe_load_all((folder / "torchrelay.yaml").read_text())
        if o["kind"] == "Deployment"
        for c in o["spec"]["template"]["spec"]["containers"]
    }
    assert {i["name"] for i in kustomization["images"]} == images


def test_versions_agree() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = next(line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version = "))
    assert chart["appVersion"] == version.split('"')[1]


def test_the_agents_image_is_kept_on_nodes_where_that_is_asked_for() -> None:
    assert [o for o in rendered("defaults") if o["kind"] == "DaemonSet"] == []
    pod = one(rendered("everything"), "DaemonSet", "relay-agent-image")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "r.example/x/agent:v9"
    assert container["command"][-2:] == ["-c", "import signal; signal.pause()"]
    assert pod["nodeSelector"] == {"gpu": "yes"}
    assert pod["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("name", "namespaces"), [("defaults", None), ("one-namespace", ["team"])], ids=["anywhere", "in named namespaces"]
)
def test_the_controller_s_ports_are_open_to_pods_of_jobs_alone(name: str, namespaces: list[str] | None) -> None:
    policy = one(rendered(name), "NetworkPolicy", "torchrelay-controller")
    (rule,) = policy["spec"]["ingress"]
    assert {"matchExpressions": [{"key": kube.JOB, "operator": "Exists"}]} in [p["podSelector"] for p in rule["from"]]
    assert all(p["podSelector"]["matchExpressions"][0]["key"] == kube.JOB for p in rule["from"])
    if namespaces is None:
        (peer,) = rule["from"]
        assert peer["namespaceSelector"]["matchExpressions"][0]["operator"] == "NotIn"
    else:
        named = [p["namespaceSelector"]["matchLabels"]["kubernetes.io/metadata.name"] for p in rule["from"]]
        assert named == namespaces


def test_the_controller_reads_the_platform_policy_of_the_values() -> None:
    objects = rendered("everything")
    text = one(objects, "ConfigMap", "relay-platform-policy")["data"]["platform-policy.yaml"]
    policy = parse_platform_policy("values", yaml.safe_load(text))
    assert (policy.most_spares, policy.of("team").mode, policy.untouched) == (8, "observe", (("a", "b"),))
    pod = one(objects, "Deployment", "relay-controller")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    path = {e["name"]: e.get("value") for e in container["env"]}["TORCHRELAY_PLATFORM_POLICY"]
    mount = next(m for m in container["volumeMounts"] if path.startswith(m["mountPath"]))
    volume = next(v for v in pod["volumes"] if v["name"] == mount["name"])
    assert volume["configMap"]["name"] == "relay-platform-policy"


def test_the_dashboard_hears_the_controller_over_a_volume_of_these_two_and_has_no_port_that_a_network_reaches() -> None:
    objects = rendered("defaults")
    template = one(objects, "Deployment", "torchrelay-controller")["spec"]["template"]
    controller, dashboard = template["spec"]["containers"]
    assert template["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == controller["name"]
    assert (controller["name"], dashboard["name"]) == ("controller", kube.DASHBOARD_CONTAINER)
    for container in (controller, dashboard):
        env = {e["name"]: e.get("value") for e in container["env"]}
        assert env[kube.ENV_DASHBOARD_SOCKET] == kube.DASHBOARD_SOCKET
        assert kube.DASHBOARD_FOLDER in {m["mountPath"] for m in container["volumeMounts"]}
    ttl = next(e["value"] for e in controller["env"] if e["name"] == kube.ENV_TTL_AFTER_FINISHED_S)
    assert {"name": kube.ENV_TTL_AFTER_FINISHED_S, "value": ttl} in dashboard["env"]
    assert dashboard["command"][-1] == "torchrelay.dashboard.cluster"
    assert not dashboard.keys() & {"ports", "readinessProbe", "livenessProbe"}
    assert str(kube.DASHBOARD_PORT) not in str(objects)
    off = rendered("one-namespace")
    (alone,) = one(off, "Deployment", "torchrelay-controller")["spec"]["template"]["spec"]["containers"]
    assert kube.ENV_DASHBOARD_SOCKET not in {e["name"] for e in alone["env"]}


def test_lines_of_all_programs_are_as_the_values_say() -> None:
    for name, prefix, wanted in (("everything", "relay", ("json", "debug")), ("defaults", "torchrelay", ())):
        objects = rendered(name)
        for deployment in ("controller", "webhook"):
            template = one(objects, "Deployment", f"{prefix}-{deployment}")["spec"]["template"]
            for container in template["spec"]["containers"]:
                env = {e["name"]: e.get("value") for e in container.get("env", ())}
                assert tuple(env[n] for n in (ENV_LOG, ENV_LOG_LEVEL) if n in env) == wanted, container["name"]
        agent = settings_of(objects, f"{prefix}-webhook").agent
        assert (agent.logFormat, agent.logLevel) == (wanted or ("text", ""))


def test_the_controller_finds_where_notices_go_and_the_network_lets_it_out() -> None:
    objects = rendered("everything")
    pod = one(objects, "Deployment", "relay-controller")["spec"]["template"]["spec"]
    environ = {e["name"]: e["value"] for e in pod["containers"][0]["env"] if "value" in e}
    found = ClusterSettings.from_environ(environ)
    assert (found.notify_on, found.notify_form, found.notify_cluster) == ("ended,migrated", "slack", "blue")
    (mount,) = (m for m in pod["containers"][0]["volumeMounts"] if m["mountPath"] == found.notify_folder)
    (volume,) = (v for v in pod["volumes"] if v["name"] == mount["name"])
    assert volume["secret"] == {"secretName": "hook", "optional": True}
    policy = one(objects, "NetworkPolicy", "relay-controller")["spec"]["egress"]
    assert {"ports": [{"protocol": "TCP", "port": 8443}]} in policy
    kinds = json.loads((CHART / "values.schema.json").read_text())["properties"]["notifications"]["properties"]["only"]
    assert kinds["items"]["enum"] == [kind.value for kind in NoticeKind]
    (plain, _) = one(rendered("defaults"), "Deployment", "torchrelay-controller")["spec"]["template"]["spec"][
        "containers"
    ]
    assert not [e for e in plain["env"] if "NOTIFY" in e["name"]]


def test_metrics_are_off_unless_asked_for() -> None:
    objects = rendered("defaults")
    assert not [o for o in objects if o["apiVersion"].startswith("monitoring.coreos.com/")]
    container = one(objects, "Deployment", "torchrelay-controller")["spec"]["template"]["spec"]["containers"][0]
    assert kube.ENV_METRICS_PORT not in {e["name"] for e in container["env"]}
    assert settings_of(objects, "torchrelay-webhook").agent.metricsPort == 0
    assert str(kube.METRICS_PORT) not in str([o for o in objects if o["kind"] == "NetworkPolicy"])


def test_prometheus_finds_the_ports_that_controller_and_agents_open_and_the_network_lets_it_in() -> None:
    objects = rendered("everything")
    container = one(objects, "Deployment", "relay-controller")["spec"]["template"]["spec"]["containers"][0]
    env = {e["name"]: e.get("value") for e in container["env"]}
    assert env[kube.ENV_METRICS_PORT] == str(kube.METRICS_PORT)
    assert {"name": "metrics", "containerPort": kube.METRICS_PORT} in container["ports"]
    service = one(objects, "Service", "relay-controller-metrics")
    monitor = one(objects, "ServiceMonitor", "relay-controller")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    assert [p["port"] for p in service["spec"]["ports"] if p["name"] == endpoint["port"]] == [kube.METRICS_PORT]
    assert endpoint["interval"] == "30s"
    assert settings_of(objects, "relay-webhook").agent.metricsPort == kube.AGENT_METRICS_PORT
    (agents,) = one(objects, "PodMonitor", "relay-agents")["spec"]["podMetricsEndpoints"]
    assert agents == {"port": kube.AGENT_METRICS_PORT_NAME}
    rule = one(objects, "NetworkPolicy", "relay-controller")["spec"]["ingress"][1]
    assert rule["ports"] == [{"protocol": "TCP", "port": kube.METRICS_PORT}]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


def test_rules_and_dashboard_are_in_the_cluster_as_they_are_in_the_files() -> None:
    objects, files = rendered("everything"), CHART / "files"
    rules = one(objects, "PrometheusRule", "relay")
    assert rules["spec"] == yaml.safe_load((files / "rules.yaml").read_text())
    assert rules["metadata"]["labels"]["release"] == "prometheus"
    board = one(objects, "ConfigMap", "relay-dashboard")
    assert json.loads(board["data"]["torchrelay.json"]) == json.loads((files / "dashboard.json").read_text())
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_the_kustomize_component_has_all_that_the_chart_has_with_metrics() -> None:
    files = render_deploy.kustomize_files()
    more, changed = ([*yaml.safe_load_all(files[f"monitoring/{name}.yaml"])] for name in ("monitoring", "patches"))
    assert {o["kind"] for o in more} == {"ConfigMap", "Service", "ServiceMonitor", "PodMonitor", "PrometheusRule"}
    base = {(o["kind"], o["metadata"]["name"]) for o in yaml.safe_load_all(files["torchrelay.yaml"])}
    names = {(o["kind"], o["metadata"]["name"]) for o in changed}
    assert names <= base
    assert {("Deployment", "torchrelay-controller"), ("ConfigMap", "torchrelay-webhook")} <= names
    assert not {(o["kind"], o["metadata"]["name"]) for o in more} & base


def test_history_has_a_volume_that_the_dashboard_alone_mounts_where_a_claim_is_named() -> None:
    history = {"claim": "torchrelay-history", "sizeMiB": 64}
    objects = render_deploy.render({"dashboard": {"history": history}}, "system")
    spec = one(objects, "Deployment", "torchrelay-controller")["spec"]["template"]["spec"]
    (volume,) = [v for v in spec["volumes"] if "persistentVolumeClaim" in v]
    assert volume["persistentVolumeClaim"] == {"claimName": history["claim"]}
    mounts = {c["name"]: [m for m in c["volumeMounts"] if m["name"] == volume["name"]] for c in spec["containers"]}
    assert mounts == {"controller": [], "dashboard": [{"name": volume["name"], "mountPath": kube.HISTORY_FOLDER}]}
    (dashboard,) = [c for c in spec["containers"] if c["name"] == kube.DASHBOARD_CONTAINER]
    settings = DashboardSettings.from_environ({e["name"]: e["value"] for e in dashboard["env"]})
    assert (settings.history, settings.history_bytes) == (Path(kube.HISTORY_FOLDER), 64 << 20)
    assert spec["securityContext"]["fsGroup"] == spec["securityContext"]["runAsUser"]
    without = one(rendered("defaults"), "Deployment", "torchrelay-controller")["spec"]["template"]["spec"]
    assert "fsGroup" not in without["securityContext"]
    assert not [v for v in without["volumes"] if "persistentVolumeClaim" in v]


def test_tokens_reach_the_dashboard_alone_and_the_controller_knows_that_there_are_some() -> None:
    objects = render_deploy.render({"dashboard": {"tokens": {"secret": "people"}}}, "system")
    spec = one(objects, "Deployment", "torchrelay-controller")["spec"]["template"]["spec"]
    (volume,) = [v for v in spec["volumes"] if v.get("secret", {}).get("secretName") == "people"]
    assert volume["secret"]["optional"], "jobs are looked after without it, too"
    mounts = {c["name"]: [m for m in c["volumeMounts"] if m["name"] == volume["name"]] for c in spec["containers"]}
    where = {"name": volume["name"], "mountPath": kube.DASHBOARD_TOKENS_FOLDER, "readOnly": True}
    assert mounts == {"controller": [], "dashboard": [where]}
    told = {c["name"]: {e["name"]: e.get("value", "") for e in c["env"]} for c in spec["containers"]}
    assert DashboardSettings.from_environ(told["dashboard"]).tokens == Path(kube.DASHBOARD_TOKENS_FOLDER)
    assert ClusterSettings.from_environ(told["controller"]).takes_asks
    assert kube.ENV_DASHBOARD_TOKENS not in str(rendered("defaults"))


@pytest.mark.parametrize("tokens", [None, {"secret": None}])
def test_a_release_from_before_the_tokens_is_upgraded_with_its_own_values(tokens: dict[str, Any] | None) -> None:
    assert kube.ENV_DASHBOARD_TOKENS not in str(render_deploy.render({"dashboard": {"tokens": tokens}}, "system"))


@pytest.mark.parametrize(
    ("replicas", "dashboard", "strategy"),
    [(1, True, "Recreate"), (2, True, "RollingUpdate"), (1, False, "RollingUpdate")],
)
def test_a_single_replica_gives_the_volume_of_the_history_back_before_the_next_one_wants_it(
    replicas: int, dashboard: bool, strategy: str
) -> None:
    history = {"enabled": dashboard, "history": {"claim": "torchrelay-history"}}
    objects = render_deploy.render({"controller": {"replicas": replicas}, "dashboard": history}, "system")
    assert one(objects, "Deployment", "torchrelay-controller")["spec"]["strategy"]["type"] == strategy


@pytest.mark.parametrize(
    "history", [None, {"claim": "torchrelay-history", "sizeMiB": None}], ids=["no values", "a claim alone"]
)
def test_a_release_from_before_the_history_is_upgraded_with_its_own_values(history: dict[str, Any] | None) -> None:
    objects = render_deploy.render({"dashboard": {"history": history}}, "system")  # null takes a default away
    containers = one(objects, "Deployment", "torchrelay-controller")["spec"]["template"]["spec"]["containers"]
    (dashboard,) = [c for c in containers if c["name"] == kube.DASHBOARD_CONTAINER]
    told = {e["name"]: e["value"] for e in dashboard["env"]}
    assert told.get(kube.ENV_HISTORY_BYTES) == (str(512 << 20) if history else None)
