from __future__ import annotations

import pytest

from torchrelay.protocol.machine.visible_gpus import selected, selections

ALL = {"CUDA_VISIBLE_DEVICES": "c", "HIP_VISIBLE_DEVICES": "h", "ROCR_VISIBLE_DEVICES": "r"}


@pytest.mark.parametrize(
    ("left_out", "amd", "found"),
    [
        ((), False, ("c",)),
        (("CUDA_VISIBLE_DEVICES",), False, ()),
        ((), True, ("r", "h")),
        (("HIP_VISIBLE_DEVICES",), True, ("r", "c")),
        (("ROCR_VISIBLE_DEVICES",), True, ("h",)),
        (tuple(ALL), True, ()),
    ],
)
def test_each_maker_s_runtimes_go_by_their_own_variables(
    left_out: tuple[str, ...], amd: bool, found: tuple[str, ...]
) -> None:
    environ = {name: value for name, value in ALL.items() if name not in left_out}
    assert selections(environ, amd=amd) == found


@pytest.mark.parametrize(
    ("selection", "places"),
    [("2,0", [2, 0]), ("GPU-b", [1]), ("1,7,0", [1]), ("GPU-x,0", []), (" 1 , 2 ", [1, 2]), ("", []), ("-1", [])],
)
def test_a_choice_ends_at_the_first_entry_that_names_none(selection: str, places: list[int]) -> None:
    assert selected(["GPU-a", "GPU-b", "GPU-c"], selection) == places
