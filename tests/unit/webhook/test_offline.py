from __future__ import annotations

import dataclasses
import io
from pathlib import Path
from typing import Any

import pytest
import yaml
from support import kube_schema

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.webhook.injection.inject import injected
from torchrelay.webhook.manifests.yaml_text import dump
from torchrelay.webhook.offline import inject_text, main
from torchrelay.webhook.settings import WebhookSettings

CLASSIC = WebhookSettings(sidecar=kube.CLASSIC)
POD_SPEC = {"containers": [{"name": "main", "image": "x", "command": ["python", "train.py"]}]}


def workload(kind: str, spec: dict[str, Any], api: str = "v1") -> dict[str, Any]:
    return {"apiVersion": api, "kind": kind, "metadata": {"name": "big"}, "spec": spec}


def template(**annotations: str) -> dict[str, Any]:
    return {"metadata": {"annotations": dict(annotations)}, "spec": POD_SPEC} if annotations else {"spec": POD_SPEC}


def run(*documents: dict[str, Any], authority: str = "PEM") -> tuple[list[Any], list[str]]:
    done = inject_text("---\n".join(map(dump, documents)), CLASSIC, authority)
    return list(yaml.safe_load_all(done.text)), done.notes


def is_injected(template: dict[str, Any], job: str = "big") -> bool:
    return (
        any(c["name"] == kube.AGENT_CONTAINER for c in template["spec"]["containers"])
        and template["metadata"]["labels"][kube.JOB] == job
        and "ownerReferences" not in template["metadata"]
    )


REPLICATED = {"replicatedJobs": [{"name": "node", "template": {"spec": {"template": template()}}}]}
WORKLOADS = [
    (workload("Pod", POD_SPEC), []),
    (workload("Job", {"template": {"spec": {**POD_SPEC, "restartPolicy": "Never"}}}, "batch/v1"), ["template"]),
    (
        workload("StatefulSet", {"serviceName": "s", "selector": {}, "template": template()}, "apps/v1"),
        ["template"],
    ),
    (
        workload("PyTorchJob", {"pytorchReplicaSpecs": {"Master": {"template": template()}}}, "kubeflow.org/v1"),
        ["pytorchReplicaSpecs", "Master", "template"],
    ),
    (
        workload("JobSet", REPLICATED, "jobset.x-k8s.io/v1alpha2"),
        ["replicatedJobs", 0, "template", "spec", "template"],
    ),
    (
        workload("RayCluster", {"workerGroupSpecs": [{"groupName": "g", "template": template()}]}, "ray.io/v1"),
        ["workerGroupSpecs", 0, "template"],
    ),
    (
        workload("RayJob", {"rayClusterSpec": {"headGroupSpec": {"template": template()}}}, "ray.io/v1"),
        ["rayClusterSpec", "headGroupSpec", "template"],
    ),
    (
        workload(
            "LeaderWorkerSet", {"leaderWorkerTemplate": {"workerTemplate": template()}}, "leaderworkerset.x-k8s.io/v1"
        ),
        ["leaderWorkerTemplate", "workerTemplate"],
    ),
]


@pytest.mark.parametrize(("document", "path"), WORKLOADS, ids=lambda x: x["kind"] if isinstance(x, dict) else "")
def test_the_pods_of_every_kind_of_workload_are_prepared(document: dict[str, Any], path: list[Any]) -> None:
    (new,), notes = run(document)
    assert notes == []
    found = new if not path else new["spec"]
    for step in path:
        found = found[step]
    assert is_injected(found)
    assert found["metadata"]["annotations"][kube.OWNER] == f"{document['kind']}/big"


@pytest.mark.parametrize("index", [0, 1, 2])
def test_what_kubernetes_itself_knows_fits_its_schema(index: int) -> None:
    (new,), _ = run(WORKLOADS[index][0])
    if new["kind"] == "StatefulSet":
        new["spec"]["selector"] = {"matchLabels": {"a": "b"}}
    kube_schema.check(new, "1.36")


def test_the_webhook_finds_nothing_left_to_do_but_to_fill_in_the_authority() -> None:
    (new,), notes = run(workload("Pod", POD_SPEC), authority="")
    assert notes == ["TORCHRELAY_CA is empty, so the webhook has to fill it in; --ca-file gives it"]
    filled, _ = injected(new, CLASSIC, "PEM")
    agent = next(c for c in filled["spec"]["containers"] if c["name"] == kube.AGENT_CONTAINER)
    assert {"name": kube.ENV_CA, "value": "PEM"} in agent["env"]
    agent["env"] = [{**e, "value": ""} if e["name"] == kube.ENV_CA else e for e in agent["env"]]
    assert filled == new


@pytest.mark.parametrize(("document", "path"), WORKLOADS, ids=lambda x: x["kind"] if isinstance(x, dict) else "")
def test_a_second_time_nothing_changes_and_it_is_said(document: dict[str, Any], path: list[Any]) -> None:
    once = inject_text(dump(document), CLASSIC, "PEM").text
    again = inject_text(once, CLASSIC, "")
    assert again.text == once
    assert again.notes == [f"{document['kind']} big: is injected already, and stays as it is"]


def test_what_an_older_version_had_added_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    job = workload("Job", {"template": {"spec": POD_SPEC}}, "batch/v1")
    older = dataclasses.replace(CLASSIC, agent=dataclasses.replace(CLASSIC.agent, image="agent:older"))
    with monkeypatch.context() as patched:
        patched.setattr("torchrelay.webhook.injection.inject.VERSION", "0.0.1")
        then = inject_text(dump(job), older, "THEIR PEM").text
    assert "agent:older" in then
    now = inject_text(then, CLASSIC, "PEM")
    assert yaml.safe_load(now.text) == yaml.safe_load(inject_text(dump(job), CLASSIC, "PEM").text)
    assert now.notes == ["Job big: what version 0.0.1 had added is replaced"]


def test_documents_without_pods_stay_as_they_are_written() -> None:
    service = "# why\nkind: Service   # odd layout\nmetadata: {name: s}\n"
    done = inject_text(f"---\n{service}---\n{dump(workload('Pod', POD_SPEC))}", CLASSIC, "PEM")
    assert done.text.startswith(service + "---\n")


def test_a_list_is_looked_into() -> None:
    (new,), _ = run({"apiVersion": "v1", "kind": "List", "items": [workload("Pod", POD_SPEC), {"kind": "Service"}]})
    assert is_injected(new["items"][0])
    assert new["items"][1] == {"kind": "Service"}


def test_where_one_template_is_annotated_the_others_are_left_alone() -> None:
    replicas = {"Master": {"template": template()}, "Worker": {"template": template(**{kube.INJECT: "true"})}}
    (new,), _ = run(workload("PyTorchJob", {"pytorchReplicaSpecs": replicas}))
    assert is_injected(new["spec"]["pytorchReplicaSpecs"]["Worker"]["template"])
    assert new["spec"]["pytorchReplicaSpecs"]["Master"]["template"] == template()


def test_of_a_runtime_what_trains_is_annotated_for_the_webhook() -> None:
    jobs = [{"name": n, "template": {"spec": {"template": template()}}} for n in ("dataset-initializer", "node")]
    (new,), notes = run(workload("ClusterTrainingRuntime", {"template": {"spec": {"replicatedJobs": jobs}}}))
    initializer, node = (j["template"]["spec"]["template"] for j in new["spec"]["template"]["spec"]["replicatedJobs"])
    assert initializer == template()
    assert node == template(**{kube.INJECT: "true"})
    assert "prepared by the webhook" in notes[0]


def test_a_trainjob_gets_an_annotation_for_the_pods_that_its_runtime_makes() -> None:
    (new,), notes = run(workload("TrainJob", {"runtimeRef": {"name": "torch"}}))
    (patch,) = new["spec"]["runtimePatches"]
    job = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"][0]
    assert job["template"]["spec"]["template"]["metadata"]["annotations"] == {kube.INJECT: "true"}
    assert "prepared by the webhook" in notes[0]
    (older,), _ = run(workload("TrainJob", {"podTemplateOverrides": []}))
    assert older["spec"]["podTemplateOverrides"][0]["metadata"]["annotations"] == {kube.INJECT: "true"}


@pytest.mark.parametrize("spec", [{"runtimeRef": {"name": "torch"}}, {"podTemplateOverrides": []}])
def test_a_trainjob_is_annotated_once(spec: dict[str, Any]) -> None:
    once = inject_text(dump(workload("TrainJob", spec)), CLASSIC, "PEM").text
    again = inject_text(once, CLASSIC, "PEM")
    assert again.text == once
    assert again.notes == ["TrainJob big: is injected already, and stays as it is"]


def test_a_job_that_is_named_when_it_is_made_is_left_to_the_webhook() -> None:
    job = workload("Job", {"template": template()})
    job["metadata"] = {"generateName": "big-"}
    (new,), notes = run(job)
    assert new["spec"]["template"] == template(**{kube.INJECT: "true"})
    assert "prepared by the webhook" in notes[0]


def test_a_job_without_a_name_but_with_the_label_is_prepared() -> None:
    job = workload("Job", {"template": {"metadata": {"labels": {kube.JOB: "mine"}}, "spec": POD_SPEC}})
    job["metadata"] = {"generateName": "big-"}
    (new,), _ = run(job)
    assert is_injected(new["spec"]["template"], "mine")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: [", "no YAML"),
        ("kind: Service\n", "nothing in it that makes pods"),
        (dump(workload("Job", {"template": template(**{kube.INJECT: "false"})})), "nothing in it"),
        (
            dump(workload("Job", {"template": template(**{kube.INJECT: "true", kube.POLICY: "x"})})),
            "Job big: torchrelay.dev/policy",
        ),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        inject_text(text, CLASSIC, "PEM")


@pytest.mark.parametrize(
    "text", ["1e3", "0o17", "y", "No", "1_000", "0x1F", "1:30", "~", "", "-", ".5", "@x", "#x", "a: b", "*", " x", "é"]
)
def test_text_stays_text_for_every_parser(text: str) -> None:
    written = dump({"value": text})
    assert yaml.safe_load(written) == {"value": text}
    assert '"' in written


def test_text_of_several_lines_stays_readable() -> None:
    pem = "-----BEGIN-----\nabc\n-----END-----\n"
    assert "value: |\n" in dump({"value": pem})
    assert yaml.safe_load(dump({"value": pem})) == {"value": pem}


def test_the_command_reads_files_and_prints_a_manifest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.yaml").write_text(dump(workload("Pod", POD_SPEC)))
    (tmp_path / "ca.crt").write_text("THE PEM\n")
    (tmp_path / "webhook.yaml").write_text("agent: {commandPrefix: [/my/python]}\n")
    options = ["--ca-file", str(tmp_path / "ca.crt"), "--config", str(tmp_path / "webhook.yaml"), "--image", "mine:1"]
    assert main(["-f", str(tmp_path / "job.yaml"), *options, "--sidecar", "native"]) == 0
    printed = capsys.readouterr()
    agent = yaml.safe_load(printed.out)["spec"]["initContainers"][-1]
    assert (agent["image"], agent["command"][0], agent["restartPolicy"]) == ("mine:1", "/my/python", "Always")
    assert {"name": kube.ENV_CA, "value": "THE PEM\n"} in agent["env"]
    monkeypatch.setattr("sys.stdin", io.StringIO(dump(workload("Pod", POD_SPEC))))
    assert main(["-f", "-"]) == 0
    assert is_injected(yaml.safe_load(capsys.readouterr().out))


def test_the_command_says_what_is_wrong_and_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-f", str(tmp_path / "missing.yaml")]) == 2
    assert "missing.yaml cannot be read" in capsys.readouterr().err
