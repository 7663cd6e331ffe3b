"""The commands of docs/tutorial-cluster.md, run in their order as a reader would, say what the page says."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import yaml
from support.kube_install import Installation
from support.kubectl import Kubectl
from support.training_pods import IMAGE, host_volumes, python
from support.tutorial import blocks, missing, typed

RUN_S = 240.0


def here(manifest: dict[str, Any]) -> dict[str, Any]:
    """With the image of the test cluster, which has this machine's Python."""
    if manifest["kind"] == "Pod":
        volumes, mounts = host_volumes()
        spec, (container,) = manifest["spec"], manifest["spec"]["containers"]
        container = {**container, "image": IMAGE, "command": [python(), *container["command"][1:]]}
        container["volumeMounts"] = [*container["volumeMounts"], *mounts]
        manifest["spec"] = {**spec, "containers": [container], "volumes": [*spec["volumes"], *volumes]}
    return manifest


def test_each_command_of_the_tutorial_says_what_the_page_says(
    kubectl: Kubectl, torchrelay: Installation, tmp_path: Path
) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "COLUMNS": "200"}
    (tmp_path / "train.py").write_text(next(text for language, text in blocks("tutorial.md") if language == "python"))
    told, commands = "", 0
    try:
        for language, text in blocks("tutorial-cluster.md"):
            if language == "yaml":
                made = [here(manifest) for manifest in yaml.safe_load_all(text)]
                (tmp_path / "llama.yaml").write_text(yaml.safe_dump_all(made))
            elif language == "sh":
                told = typed(text, tmp_path, environment, RUN_S)
                print(told)
                commands += 1
            elif language == "text":
                assert missing(text, told) == [], told
    finally:
        kubectl("delete", "pods", "--selector=train=llama", "--ignore-not-found", "--wait=false")
        kubectl("delete", "configmap,service", "train", "llama", "--ignore-not-found")
    assert commands == 5
