from __future__ import annotations

import pytest
import torch.distributed as dist

from torchrelay.protocol.errors import StateMismatchError
from torchrelay.shim.comm.generations import group_agreement

WORLD = ("0", (0, 1, 2), "gloo", "default_pg")


def said(*others: tuple[tuple[str, tuple[int, ...], str, str], ...]) -> dist.HashStore:
    store = dist.HashStore()
    for rank, groups in enumerate(others):
        group_agreement.say(store, rank, groups)
    return store


def test_members_of_the_same_groups_agree() -> None:
    pair, other = ("3", (0, 1), "gloo", ""), ("4", (1, 2), "gloo", "")
    store = said((WORLD, pair), (WORLD, pair, other), (WORLD, other))
    for rank in range(3):
        group_agreement.check(store, rank, 3)


def test_what_a_group_calls_itself_does_not_matter() -> None:
    store = said((WORLD,), (("0", (0, 1, 2), "undefined", ""),), (WORLD,))
    group_agreement.check(store, 1, 3)


@pytest.mark.parametrize(
    ("own", "text"),
    [
        ((WORLD,), "process group '3' has ranks 0, 1 in rank 0, and no members in this process"),
        ((WORLD, ("3", (0, 1, 2), "gloo", "")), "'3' has ranks 0, 1 in rank 0, and ranks 0, 1, 2 in this process"),
    ],
    ids=["one less", "others in it"],
)
def test_a_group_that_one_of_two_members_lacks_is_named(
    own: tuple[tuple[str, tuple[int, ...], str, str], ...], text: str
) -> None:
    store = said((WORLD, ("3", (0, 1), "gloo", "")), own, (WORLD,))
    with pytest.raises(StateMismatchError, match=text):
        group_agreement.check(store, 1, 3)


def test_a_group_that_another_member_has_let_go_of_is_incomplete() -> None:
    pair = ("3", (0, 1), "gloo", "")
    store = said((WORLD, pair), (WORLD,), (WORLD,))
    assert group_agreement.incomplete(store, (WORLD, pair)) == {"3"}
    assert group_agreement.incomplete(store, (WORLD,)) == frozenset()
