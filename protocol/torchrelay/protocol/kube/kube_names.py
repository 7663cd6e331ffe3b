"""The one home of every name that torchrelay uses in Kubernetes: annotations, labels, containers, volumes, resources."""

from __future__ import annotations

from torchrelay.protocol.names import AGENT_METRICS_OFFSET, DEFAULT_METRICS_PORT

GROUP = "torchrelay.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"

# Annotations on the pod template: what the user asks for.
INJECT = f"{GROUP}/inject"
SPARES = f"{GROUP}/spares"
POLICY = f"{GROUP}/policy"
FALLBACK = f"{GROUP}/fallback"
CHECKPOINT_DIR = f"{GROUP}/checkpoint-dir"
BUDDY_EVERY = f"{GROUP}/buddy-every"
BUDDY_SYNC = f"{GROUP}/buddy-sync"
TRANSFER_ENCRYPTION = f"{GROUP}/transfer-encryption"
CONTAINER = f"{GROUP}/container"
SPARE_WAIT = f"{GROUP}/spare-wait"
RESPAWN_LIMIT = f"{GROUP}/respawn-limit"
REHEARSE_EVERY = f"{GROUP}/rehearse-every"
HANG_TIMEOUT = f"{GROUP}/hang-timeout"
USER_ANNOTATIONS = (
    INJECT,
    SPARES,
    POLICY,
    FALLBACK,
    CHECKPOINT_DIR,
    BUDDY_EVERY,
    BUDDY_SYNC,
    TRANSFER_ENCRYPTION,
    CONTAINER,
    SPARE_WAIT,
    RESPAWN_LIMIT,
    REHEARSE_EVERY,
    HANG_TIMEOUT,
)

POLICY_AUTO = "auto"
POLICY_OBSERVE = "observe"
POLICY_PLANNED_ONLY = "planned-only"
POLICIES = (POLICY_AUTO, POLICY_OBSERVE, POLICY_PLANNED_ONLY)
NEXT_SPARE = "next-spare"
RESPAWN = "respawn"
JIT_CHECKPOINT = "jit-checkpoint"
CHECKPOINT = "checkpoint"
FALLBACKS = (NEXT_SPARE, RESPAWN, JIT_CHECKPOINT, CHECKPOINT)
"""The rungs, in the order in which they are tried; `/fallback` names those that may be."""

# Annotations that the webhook writes.
INJECTED = f"{GROUP}/injected"
"""The version of torchrelay that prepared the pod."""
OWNER = f"{GROUP}/owner"
"""`KIND/NAME` of the workload that a person made: `PyTorchJob/llama`. Never cut, unlike the label."""

ORIGIN = f"{GROUP}/origin"
BY_CONTROLLER = "controller"
"""Annotation of a resource that torchrelay has made, rather than a person."""
REQUESTED_BY = f"{GROUP}/requested-by"
"""Annotation of a resource: the API's user who made it, as the webhook has written it down."""
CHANGED_BY = f"{GROUP}/changed-by"
"""Annotation of a resource: `GENERATION USER` of its latest change, as the webhook has written it down."""
NOT_INJECTED = f"{GROUP}/not-injected"
"""Why a pod that asked for it was left alone."""
NOTES = f"{GROUP}/notes"
"""What a person should know about an injected pod. Warnings of an admission reach only the controller that made the pod."""

# Labels.
JOB = f"{GROUP}/job"
"""All pods of one job in one namespace have the same; a person may set it to group bare pods."""
ROLE = f"{GROUP}/role"
WORKER = "worker"
SPARE = "spare"

# Names of what is added to a pod.
INIT_CONTAINER = "torchrelay-init"
AGENT_CONTAINER = "torchrelay-agent"
CODE_VOLUME = "torchrelay"
CODE_FOLDER = "/opt/torchrelay"
RUN_VOLUME = "torchrelay-run"
RUN_FOLDER = "/run/torchrelay"
KEPT_VOLUME = "torchrelay-kept"
KEPT_FOLDER = "/run/torchrelay-kept"
"""For copies of ranks' states, where they are asked for: in memory."""
TOKEN_VOLUME = "torchrelay-token"
TOKEN_FOLDER = "/var/run/secrets/torchrelay"
TOKEN_FILE = "token"
TOKEN_AUDIENCE = "torchrelay"
TOKEN_LIFETIME_S = 3600
OWN_VOLUMES = (CODE_VOLUME, RUN_VOLUME, KEPT_VOLUME, TOKEN_VOLUME)

SITE_FOLDER = f"{CODE_FOLDER}/site"
"""With `sitecustomize.py` alone: goes on PYTHONPATH."""
ROOT_FOLDER = f"{CODE_FOLDER}/root"
"""Holds `torchrelay/shim` and `torchrelay/protocol`."""
SOCKET_PATH = f"{RUN_FOLDER}/agent.sock"
JOURNAL_FOLDER = f"{RUN_FOLDER}/journal"
SHIM_TOKEN_PATH = f"{RUN_FOLDER}/shim-token"
"""What training processes show to the agent: made by it at random, since whatever the pod says of itself many may read."""

# Environment of the training container, besides `names.SHIM_ENV`.
ENV_ASK = "TORCHRELAY_ASK"
"""Set to 1: the shim waits for the agent's socket and asks whether it is a rank or a spare before the script begins."""
ENV_CHECKPOINT_DIR = "TORCHRELAY_CHECKPOINT_DIR"

# Environment of the agent.
ENV_CONTROLLER = "TORCHRELAY_CONTROLLER"
ENV_ENROLL = "TORCHRELAY_ENROLL"
ENV_CA = "TORCHRELAY_CA"
"""PEM of the authority that the controller's certificate must come from."""
ENV_JOB = "TORCHRELAY_JOB"
ENV_POD = "TORCHRELAY_POD"
ENV_POD_UID = "TORCHRELAY_POD_UID"
ENV_POD_IP = "TORCHRELAY_POD_IP"
ENV_NAMESPACE = "TORCHRELAY_NAMESPACE"
ENV_NODE = "TORCHRELAY_NODE"
ENV_GPUS = "TORCHRELAY_GPUS"
"""`RESOURCE=COUNT` as the training container asks for: `nvidia.com/gpu=8`; absent where it asks for none."""
ENV_TRAINING_USER = "TORCHRELAY_TRAINING_USER"
"""The number of the user that the training container runs as; absent where that is its image's."""
ENV_CONTAINER = "TORCHRELAY_CONTAINER"
"""Name of the training container."""
ENV_RESTART_POLICY = "TORCHRELAY_RESTART_POLICY"
"""The pod's: an agent whose pod's containers are not started again need not wait for that."""
ENV_METRICS_PORT = "TORCHRELAY_METRICS_PORT"
"""Of agent and controller: where they answer Prometheus; 0 or absent: nowhere."""
ENV_DASHBOARD_SOCKET = "TORCHRELAY_DASHBOARD_SOCKET"
"""Of the controller and the dashboard beside it; absent: there is none."""
ENV_DASHBOARD_TOKENS = "TORCHRELAY_DASHBOARD_TOKENS"
"""Of the controller and its dashboard: the folder with a token for each person who may ask for something; absent: nobody."""
ENV_HISTORY_BYTES = "TORCHRELAY_HISTORY_BYTES"
"""Of the dashboard beside the controller: how much is kept in the folder of `names.ENV_HISTORY_DIR` at most."""
HISTORY_FOLDER = "/var/lib/torchrelay-history"
"""Where that folder is in its container: a volume."""
ENV_NOTIFY_FOLDER = "TORCHRELAY_NOTIFY_FOLDER"
"""Of the controller: the folder with the address that notices are posted to."""
ENV_NOTIFY_ON = "TORCHRELAY_NOTIFY_ON"
"""Of the controller: what notices are posted about."""
ENV_NOTIFY_FORM = "TORCHRELAY_NOTIFY_FORMAT"
"""Of the controller: in which form notices are posted."""
ENV_NOTIFY_CLUSTER = "TORCHRELAY_NOTIFY_CLUSTER"
"""Of the controller: what notices call the cluster."""
ENV_WATCH_NAMESPACE = "TORCHRELAY_WATCH_NAMESPACE"
"""Of the controller: the one namespace whose jobs it looks after; `*`: all."""
ENV_PLATFORM_POLICY = "TORCHRELAY_PLATFORM_POLICY"
"""Of the controller: the file with what jobs may ask for; absent: anything."""
ENV_SERVICE = "TORCHRELAY_SERVICE"
"""Of the controller: its Service, which leads to the one that leads."""
ENV_LISTEN_HOST = "TORCHRELAY_LISTEN_HOST"
"""Of the controller: the address to listen on; absent: all."""
ENV_RELAY_PORT = "TORCHRELAY_RELAY_PORT"
"""Of the controller: the port for agents."""
ENV_ENROLL_PORT = "TORCHRELAY_ENROLL_PORT"
"""Of the controller: the port for agents that have no certificate yet."""
ENV_HEALTH_POLICY = "TORCHRELAY_HEALTH_POLICY"
"""The file of one's own fault policy; absent: the default one. Changes of it count at once."""
ENV_HEALTH_OBSERVE = "TORCHRELAY_HEALTH_OBSERVE"
"""Set to 1: what the fault policy would do is said, and nothing is done."""
ENV_NODE_GRACE_S = "TORCHRELAY_NODE_GRACE_S"
"""For so many seconds a node may not answer before pods on it are deleted by force whose ranks live elsewhere; absent: 60."""
ENV_TTL_AFTER_FINISHED_S = "TORCHRELAY_TTL_AFTER_FINISHED_S"
"""Of both, too: for how long a job is kept after its end."""
ENV_SIDECAR = "TORCHRELAY_SIDECAR"
NATIVE = "native"
CLASSIC = "classic"
"""`native`: an init container with restartPolicy Always, ended by the kubelet when training is over. `classic`: a container
like any other, which has to end by itself then, or a Job never completes."""

# Names of what torchrelay itself runs as.
SYSTEM_NAMESPACE = "torchrelay-system"
CONTROLLER_SERVICE = "torchrelay-controller"
CONTROLLER_LEASE = "torchrelay-controller"
"""Its holder is the pod that leads."""
RELAY_PORT = 29476
ENROLL_PORT = 29477
READY_PORT = 29478
METRICS_PORT = DEFAULT_METRICS_PORT
AGENT_METRICS_PORT = METRICS_PORT + AGENT_METRICS_OFFSET
DASHBOARD_PORT = AGENT_METRICS_PORT + 1
"""On the loopback device of the controller's pod alone: `kubectl port-forward` reaches it, and nothing else."""
DASHBOARD_CONTAINER = "dashboard"
DASHBOARD_FOLDER = "/run/torchrelay-dashboard"
DASHBOARD_SOCKET = f"{DASHBOARD_FOLDER}/events.sock"
DASHBOARD_TOKENS_FOLDER = "/etc/torchrelay-dashboard"
"""Where the controller tells the dashboard beside it what happens: a volume of these two containers."""
AGENT_METRICS_PORT_NAME = "torchrelay"
"""Of the agent's container port: a PodMonitor looks for it. Kubernetes allows 15 characters."""
WEBHOOK_SERVICE = "torchrelay-webhook"
WEBHOOK_CONFIGURATION = "torchrelay"
WEBHOOK_CERT_SECRET = "torchrelay-webhook-cert"
CA_SECRET = "torchrelay-ca"
"""What certificates are made with; the controller alone may read it."""
CA_CONFIG_MAP = "torchrelay-ca"
CA_KEY = "ca.crt"
"""In that ConfigMap: the public part of it, written by the controller, read by the webhook."""
