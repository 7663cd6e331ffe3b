"""Prints a kind cluster's configuration: three workers that have this machine's Python, sources and OUT below ON_NODES.

Usage: config.py OUT ON_NODES
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from support.training_pods import host_folders

WORKERS = 3


def kind_config(out: str, on_nodes: str) -> dict[str, Any]:
    mounts = [
        {"hostPath": folder, "containerPath": f"{on_nodes}{folder}", "readOnly": True}
        for folder in host_folders().values()
    ]
    mounts.append({"hostPath": out, "containerPath": f"{on_nodes}{out}"})
    worker = {"role": "worker", "extraMounts": mounts}
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": "control-plane"}, *[worker] * WORKERS],
    }


if __name__ == "__main__":
    print(json.dumps(kind_config(*sys.argv[1:3]), indent=2))
