from __future__ import annotations

import pytest

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.kube import kube_names as kube
from torchrelay.protocol.kube.annotations import PodAnnotations, read, unknown

NUMBERS = (kube.SPARES, kube.BUDDY_EVERY, kube.SPARE_WAIT, kube.RESPAWN_LIMIT, kube.REHEARSE_EVERY, kube.HANG_TIMEOUT)


def test_no_annotation_asks_for_nothing() -> None:
    assert read(None) == PodAnnotations()
    assert not read({}).inject


def test_all_annotations_are_read() -> None:
    wishes = read(
        {
            kube.INJECT: "true",
            kube.SPARES: "3",
            kube.POLICY: "planned-only",
            kube.FALLBACK: "next-spare, checkpoint",
            kube.CHECKPOINT_DIR: "/data/ckpt/",
            kube.BUDDY_EVERY: "50",
            kube.BUDDY_SYNC: "true",
            kube.REHEARSE_EVERY: "1800",
            kube.HANG_TIMEOUT: "90",
            kube.CONTAINER: "train",
            "somebody.else/annotation": "x",
        }
    )
    assert wishes == PodAnnotations(
        True,
        3,
        "",
        "planned-only",
        ("next-spare", "checkpoint"),
        "/data/ckpt",
        50,
        "train",
        buddy_sync=True,
        rehearse_every_s=1800.0,
        hang_timeout_s=90.0,
    )


def test_spares_can_name_a_pool() -> None:
    wishes = read({kube.SPARES: "gpu-pool"})
    assert (wishes.spares, wishes.pool) == (None, "gpu-pool")


def test_an_empty_fallback_leaves_none() -> None:
    assert read({kube.FALLBACK: ""}).fallback == ()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (kube.INJECT, "yes", '"true" or "false"'),
        (kube.INJECT, "True", '"true" or "false"'),
        (kube.SPARES, "-1", "a number of spares"),
        (kube.SPARES, "1.5", "SparePool"),
        (kube.SPARES, "My Pool", "SparePool"),
        (kube.SPARES, "", "SparePool"),
        (kube.SPARES, "1025", "more than 1024"),
        (kube.SPARES, "²", "SparePool"),
        (kube.POLICY, "automatic", "auto, observe, planned-only"),
        (kube.FALLBACK, "checkpoint,next-spare", "in the order"),
        (kube.FALLBACK, "checkpoint,checkpoint", "once"),
        (kube.FALLBACK, "pray", "next-spare, respawn, jit-checkpoint, checkpoint"),
        (kube.CHECKPOINT_DIR, "data", "absolute"),
        (kube.CHECKPOINT_DIR, "/data/../etc", "absolute"),
        (kube.BUDDY_EVERY, "often", "number of steps"),
        (kube.BUDDY_EVERY, "-5", "number of steps"),
        (kube.BUDDY_SYNC, "8", '"true" or "false"'),
        (kube.BUDDY_SYNC, "true", "nothing is copied"),
        (kube.REHEARSE_EVERY, "30m", "a number of seconds, or 0 for never"),
        (kube.HANG_TIMEOUT, "-1", "seconds, or 0 for the process group's timeout"),
        (kube.CONTAINER, "Main", "name of a container"),
        (kube.SPARES, 2, "in quotes"),
        *((name, "9" * digits, "of 12 digits at most") for name in NUMBERS for digits in (13, 5000)),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_with_its_name_and_what_is_possible(
    name: str, value: object, said: str
) -> None:
    with pytest.raises(UserError) as refused:
        read({name: value})
    assert str(refused.value).startswith(name)
    assert said in str(refused.value)


def test_all_wrong_annotations_are_named_at_once() -> None:
    with pytest.raises(UserError) as refused:
        read({kube.POLICY: "x", kube.BUDDY_EVERY: "y"})
    assert kube.POLICY in str(refused.value)
    assert kube.BUDDY_EVERY in str(refused.value)


def test_unknown_annotations_of_our_group_are_found() -> None:
    known = dict.fromkeys(kube.USER_ANNOTATIONS, "") | {kube.INJECTED: "", kube.NOTES: "", "other/spare": ""}
    assert unknown({**known, "torchrelay.dev/spare": "2"}) == ["torchrelay.dev/spare"]
