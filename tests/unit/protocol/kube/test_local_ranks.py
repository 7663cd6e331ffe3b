"""Several processes in a pod: do ranks lie as spares of theirs would?"""

from __future__ import annotations

import pytest

from torchrelay.protocol.kube.local_ranks import local_world_size, misfit, place


def told(rank: int, here: int, local_rank: int, by_torchrun: bool = True) -> dict[str, str]:
    launch = {"RANK": str(rank), "LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(here)}
    return {**launch, "TORCHELASTIC_RUN_ID": "job"} if by_torchrun else launch


def test_only_torchrun_is_believed() -> None:
    assert local_world_size(told(3, 2, 1)) == 2
    assert local_world_size(told(3, 2, 1, by_torchrun=False)) == 1
    assert local_world_size({}) == 1


@pytest.mark.parametrize("said", ["", "0", "-1", "²", "x", "9" * 5000])
def test_what_is_no_number_of_processes_is_one(said: str) -> None:
    assert local_world_size({**told(3, 2, 1), "LOCAL_WORLD_SIZE": said}) == 1


def test_which_one_of_a_pod_s_it_is() -> None:
    assert place(told(3, 2, 1)) == 1
    assert place(told(3, 1, 1)) == 0
    assert place({}) == 0


@pytest.mark.parametrize(
    ("launch", "rank", "world_size", "processes", "words"),
    [
        (told(3, 2, 1), 3, 4, 2, ""),
        (told(3, 1, 0), 3, 4, 1, ""),
        ({"RANK": "3"}, 3, 4, 1, ""),
        (told(1, 2, 1), -1, 8, 2, ""),
        (told(1, 2, 1), 1, 3, 1, "2 of 3 ranks"),
        (told(2, 1, 0), 2, 4, 2, "1 training processes, and others of the job have 2"),
        (told(0, 4, 0), -1, 4, 2, "4 training processes, and others of the job have 2"),
        (told(3, 2, 0), 3, 4, 2, "--virtual-local-rank"),
    ],
)
def test_a_pods_ranks_follow_from_its_launch(
    launch: dict[str, str], rank: int, world_size: int, processes: int, words: str
) -> None:
    reason = misfit(launch, rank, world_size, processes)
    assert words in reason
    assert bool(words) == bool(reason)
