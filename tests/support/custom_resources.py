"""Custom resources that make sense, and some that make none: tried on the schemas, and on a real API server."""

from __future__ import annotations

from typing import Any

SHORT_NAMES = {"TrainingJob": "tj", "SparePool": "sp", "Migration": "mig", "Quarantine": "quar"}
_NOW = "2026-11-21T12:00:00Z"
CONDITION = {"type": "Ready", "status": "True", "reason": "Warm", "message": "", "lastTransitionTime": _NOW}
EXAMPLES: dict[str, dict[str, Any]] = {
    "TrainingJob": {"spec": {}, "status": {"ranks": [{"rank": 0, "pod": "a"}], "conditions": [CONDITION]}},
    "SparePool": {"spec": {"spares": 2, "topologyKeys": ["topology.kubernetes.io/zone"]}, "status": {"warm": 1}},
    "Migration": {"spec": {"job": "llama", "rank": 3}, "status": {"downtimeSeconds": 1.5, "startedAt": _NOW}},
    "Quarantine": {"spec": {"node": "n1", "reason": "XID 79"}, "status": {"conditions": [CONDITION]}},
}
WRONG = [
    ("TrainingJob", "spec", {"policy": "maybe"}),
    ("TrainingJob", "spec", {"fallback": ["pray"]}),
    ("SparePool", "spec", {}),
    ("SparePool", "spec", {"spares": -1}),
    ("SparePool", "spec", {"spares": 1.5}),
    ("Migration", "spec", {"job": "llama"}),
    ("Migration", "spec", {"job": "llama", "rank": 1, "node": "n1"}),
    ("Migration", "spec", {"rank": 1}),
    ("Migration", "spec", {"job": "llama", "rank": -1}),
    ("Quarantine", "spec", {"node": "n1"}),
    ("Quarantine", "spec", {"node": "", "reason": "x"}),
    ("Quarantine", "status", {"conditions": [{"type": "Ready"}]}),
]
