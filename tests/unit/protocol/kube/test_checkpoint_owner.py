"""Which job has saved a checkpoint, as its manifest says."""

from __future__ import annotations

from typing import Any

import pytest

from torchrelay.protocol.kube.checkpoint_owner import is_of_another_name, job_id, saved_by

JOB = job_id("team", "llama", "1")


@pytest.mark.parametrize(
    ("manifest", "job"),
    [({"origin": {"job": JOB}}, JOB), ({"origin": {"command": ["train.py"]}}, ""), ({"target": 5}, "")],
)
def test_a_manifest_names_its_job_or_none(manifest: dict[str, Any], job: str) -> None:
    assert saved_by(manifest) == job


@pytest.mark.parametrize(
    ("saved", "is_another"),
    [
        (JOB, False),
        (job_id("team", "llama", "2"), False),
        (job_id("other", "llama", "1"), True),
        (job_id("team", "llama-2", "1"), True),
        ("", False),
    ],
)
def test_an_earlier_job_has_the_same_name_and_namespace(saved: str, is_another: bool) -> None:
    assert is_of_another_name(saved, JOB) is is_another
