"""What is called of torch's `ProcessGroupNCCL`, against the real one of the torch that is here."""

from __future__ import annotations

from dataclasses import replace

import torch.distributed as dist

from torchrelay.shim.backends import nccl_interface
from torchrelay.shim.backends.nccl import Nccl

OURS = {"blocking"}
"""What is set in every communicator, whatever the script has set."""
NOT_COPIED = {
    *("split_from", "split_color"),  # how the first one was made
    *("backend", "_timeout"),  # set by torch and by us
    "use_pg_for_symm_mem_rendezvous",  # symmetric memory is refused
}


def names_of(options: object) -> set[str]:
    return {name for name in dir(options) if not name.startswith("__") and not callable(getattr(options, name))}


def test_this_torch_has_all_that_is_called() -> None:
    assert Nccl().missing() == ""
    assert nccl_interface.lacking_here() == ()


def test_this_torch_tells_how_its_functions_are_called_and_another_way_would_be_noticed() -> None:
    told = []
    for used in nccl_interface.INTERFACE:
        if used.positional is not None:
            otherwise = replace(used, positional=9)
            told += [name for _, name in nccl_interface.lacking(nccl_interface.owners(), [otherwise])]
    assert len(told) == sum(used.positional is not None for used in nccl_interface.INTERFACE), told


def test_every_option_of_a_communicator_is_known() -> None:
    """One that is not copied would be lost in the first migration, in silence."""
    options = dist.ProcessGroupNCCL.Options()
    assert names_of(options) - {"config"} - NOT_COPIED == set(nccl_interface.COPIED_OPTIONS)
    assert names_of(options.config) - OURS == set(nccl_interface.COPIED_CONFIG)


def test_options_that_the_script_has_set_are_those_of_the_next_communicator() -> None:
    options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
    options.config.min_ctas = 2
    options.config.split_share = 1
    before = dist.ProcessGroupNCCL(dist.HashStore(), 0, 1, options)
    made = Nccl().new(dist.HashStore(), 0, 1, before)
    assert made.options.is_high_priority_stream
    assert (made.options.config.min_ctas, made.options.config.split_share) == (2, 1)
    assert made.options.config.blocking == 0
    assert made.options._timeout == before.options._timeout
