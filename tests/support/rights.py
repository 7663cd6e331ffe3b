"""What the controller must be able to do, and what it must not: `verb, resource, namespace, name`.

`resource` is `GROUP/RESOURCE`, or `RESOURCE` of the core group. Asked of the chart, and of a real API server.
"""

from __future__ import annotations

HOME = "torchrelay-system"
JOBS = ("trainingjobs", "migrations", "sparepools")
CONTROLLER, WEBHOOK = "torchrelay-controller", "torchrelay-webhook"
Right = tuple[str, str, str, str]

NOT_FOR_THE_CONTROLLER: list[Right] = [
    ("list", "secrets", "team", ""),
    ("get", "secrets", "team", "anything"),
    ("list", "secrets", HOME, ""),
    ("get", "secrets", HOME, "torchrelay-webhook-cert"),
    ("update", "secrets", HOME, "torchrelay-ca"),
    ("create", "secrets", "team", ""),
    ("patch", "nodes", "", "n1"),
    ("delete", "nodes", "", "n1"),
    ("create", "configmaps", HOME, ""),
    ("patch", "configmaps", "team", "torchrelay-ca"),
    *[("delete", f"torchrelay.dev/{r}", "team", "llama") for r in ("migrations", "sparepools")],
    ("get", "rbac.authorization.k8s.io/clusterroles", "", "cluster-admin"),
    ("get", "coordination.k8s.io/leases", "kube-system", "kube-scheduler"),
    ("update", "coordination.k8s.io/leases", HOME, "another"),
    ("patch", "discovery.k8s.io/endpointslices", HOME, "torchrelay-webhook-abcde"),
    ("patch", "discovery.k8s.io/endpointslices", "team", f"{CONTROLLER}-ipv4"),
    ("create", "discovery.k8s.io/endpointslices", "team", ""),
    ("patch", "admissionregistration.k8s.io/mutatingwebhookconfigurations", "", "torchrelay"),
    ("create", "rbac.authorization.k8s.io/clusterrolebindings", "", ""),
    ("delete", "apps/deployments", "team", "web"),
]

FOR_THE_CONTROLLER: list[Right] = [
    *[(verb, "pods", "team", "p") for verb in ("get", "list", "watch", "create", "delete")],
    ("get", "persistentvolumeclaims", "team", "data-p"),
    *[(verb, "policy/poddisruptionbudgets", "team", "b") for verb in ("create", "delete")],
    *[(verb, "events", "team", "e") for verb in ("create", "patch")],
    *[(v, f"torchrelay.dev/{r}", "team", "x") for r in JOBS for v in ("get", "list", "watch", "create", "patch")],
    *[("patch", f"torchrelay.dev/{r}/status", "team", "x") for r in JOBS],
    ("delete", "torchrelay.dev/trainingjobs", "team", "x"),
    ("get", "rbac.authorization.k8s.io/clusterroles", "", f"{CONTROLLER}-jobs"),
    *[(verb, "nodes", "", "n1") for verb in ("get", "list", "watch")],
    *[(verb, "torchrelay.dev/quarantines", "", "q") for verb in ("get", "list", "watch", "create", "patch")],
    ("create", "authentication.k8s.io/tokenreviews", "", ""),
    ("get", "secrets", HOME, "torchrelay-ca"),
    ("create", "secrets", HOME, ""),
    ("get", "configmaps", HOME, "torchrelay-ca"),
    ("patch", "configmaps", HOME, "torchrelay-ca"),
    ("create", "coordination.k8s.io/leases", HOME, ""),
    ("create", "discovery.k8s.io/endpointslices", HOME, ""),
    *[(verb, "discovery.k8s.io/endpointslices", HOME, f"{CONTROLLER}-ipv4") for verb in ("get", "patch")],
    *[(verb, "coordination.k8s.io/leases", HOME, CONTROLLER) for verb in ("get", "update", "patch")],
]
