from __future__ import annotations

import re
from typing import Any

import pytest

from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.owner import MAX_LABEL_CHARS, Owner, job_of, name_problem, owner_of


def owned(kind: str, name: str, **labels: str) -> dict[str, Any]:
    references = [{"kind": "Other", "name": "no"}, {"kind": kind, "name": name, "controller": True}]
    return {"metadata": {"name": "p", "labels": labels, "ownerReferences": references}}


def test_the_pods_of_a_jobset_belong_to_it_and_not_to_their_jobs() -> None:
    pod = owned("Job", "llama-node-0", **{"jobset.sigs.k8s.io/jobset-name": "llama", "job-name": "llama-node-0"})
    assert owner_of(pod) == Owner("JobSet", "llama")


def test_kubeflows_label_is_on_the_pods_of_all_its_kinds() -> None:
    assert owner_of(owned("XGBoostJob", "trees", **{"training.kubeflow.org/job-name": "trees"})) == Owner(
        "XGBoostJob", "trees"
    )


def test_without_labels_the_controller_is_the_owner() -> None:
    assert owner_of(owned("StatefulSet", "trainer")) == Owner("StatefulSet", "trainer")


def test_a_bare_pod_is_its_own_job() -> None:
    assert owner_of({"metadata": {"name": "one"}}) == Owner("Pod", "one")
    assert owner_of({"metadata": {"generateName": "many-"}}) == Owner("Pod", "many")
    assert owner_of({"metadata": {}}) is None
    assert job_of({}) == ""


def test_a_label_that_is_there_groups_pods() -> None:
    pod = owned("Job", "a", **{kube.JOB: "group"})
    assert job_of(pod) == "group"


@pytest.mark.parametrize("length", [62, 63, 64, 253])
def test_the_label_fits_whatever_the_name(length: int) -> None:
    name = ("a" * 53 + "." + "b" * 300)[: length - 1] + "c"
    job = Owner("Job", name).job
    assert len(job) <= MAX_LABEL_CHARS
    assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", job)
    assert (job == name) == (length <= MAX_LABEL_CHARS)


def test_long_names_that_differ_at_their_end_get_different_labels() -> None:
    assert Owner("Job", "a" * 100 + "1").job != Owner("Job", "a" * 100 + "2").job


@pytest.mark.parametrize("name", ["My_Job", "a_b", "UPPER", "a.", "a..b"])
def test_a_label_that_is_no_name_of_an_object_is_told_with_what_would_be(name: str) -> None:
    problem = name_problem({"metadata": {"name": "p", "labels": {kube.JOB: name}}})
    assert f'the label {kube.JOB} is "{name}"' in problem
    assert "lower case letters" in problem


def test_an_owners_label_that_is_no_name_asks_for_one_that_is() -> None:
    problem = name_problem({"metadata": {"name": "p", "labels": {"job-name": "My_Job"}}})
    assert 'the job is called "My_Job"' in problem
    assert f"set the label {kube.JOB}" in problem


@pytest.mark.parametrize("name", ["llama", "llama-7b.run-2", "0"])
def test_names_of_objects_are_names_of_jobs(name: str) -> None:
    assert name_problem({"metadata": {"name": "p", "labels": {kube.JOB: name}}}) == ""
    assert name_problem(owned("Job", name)) == ""
    assert name_problem({"metadata": {}}) == ""
