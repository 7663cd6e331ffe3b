"""Which job has saved a checkpoint, as its manifest says."""

from __future__ import annotations

from typing import Any

import pytest

from torchrelay.protocol.kube.checkpoint_owner import folder_prefix, is_of_name, job_id, saved_by

JOB = job_id("team", "llama", "1")


@pytest.mark.parametrize(
    ("manifest", "job"),
    [({"origin": {"job": JOB}}, JOB), ({"origin": {"command": ["train.py"]}}, ""), ({"target": 5}, "")],
)
def test_a_manifest_names_its_job_or_none(manifest: dict[str, Any], job: str) -> None:
    assert saved_by(manifest) == job


@pytest.mark.parametrize(
    ("saved", "is_same"),
    [
        (JOB, True),
        (job_id("team", "llama", "2"), True),
        (job_id("other", "llama", "1"), False),
        (job_id("team", "llama-2", "1"), False),
        ("", False),
    ],
)
def test_an_earlier_job_has_the_same_name_and_namespace_and_the_same_folders(saved: str, is_same: bool) -> None:
    assert is_of_name(saved, JOB) is is_same
    assert (folder_prefix(saved) == folder_prefix(JOB)) is is_same
