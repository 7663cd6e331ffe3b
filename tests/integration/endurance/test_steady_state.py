"""What the shim keeps: nothing that grows with the number of steps, and nothing that the script has let go of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.cli_harness import Cli

pytestmark = pytest.mark.core

SCRIPT = """
    import gc, json, os, sys
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def ours():
        gc.collect()
        kinds = {}
        for thing in gc.get_objects():
            module = type(thing).__module__
            if isinstance(module, str) and module.startswith("torchrelay"):
                kinds[type(thing).__name__] = kinds.get(type(thing).__name__, 0) + 1
        return kinds

    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(8, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    total, seen = torch.zeros(1), {}
    for step in range(301):
        loss = model(torch.ones(4, 8)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(total)
        if step in (100, 300):
            seen[step] = ours(), len(gc.get_objects())
    if dist.get_rank() == 0:
        print(json.dumps(seen))
"""


def test_after_300_steps_the_shim_holds_what_it_held_after_100(tmp_path: Path) -> None:
    with Cli(tmp_path) as cli:
        done = cli.run("run", "--nproc-per-node", "2", "SCRIPT", script=SCRIPT)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    (early, early_objects), (late, late_objects) = seen["100"], seen["300"]
    assert early.get("BoundarySnapshot") == 1, early  # the job was protected, or there would be nothing to see
    assert sum(late.values()) - sum(early.values()) <= 5, (
        early,
        late,
    )  # the script keeps a result of its own meanwhile
    assert abs(late_objects - early_objects) < 100


REBINDS = """
    import sys, weakref
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    def main():
        dist.init_process_group("gloo")
        model = DistributedDataParallel(torch.nn.Linear(8, 8))
        optimizer = torch.optim.AdamW(model.parameters())
        kept = {"batch": 0, "hidden": 0, "loss": 0}
        before = {}
        for batch in torch.utils.data.DataLoader(torch.randn(60, 8), batch_size=2):
            kept["batch"] += "batch" in before and before["batch"]() is not None
            hidden = model(batch)
            kept["hidden"] += "hidden" in before and before["hidden"]() is not None
            loss = hidden.pow(2).mean()
            kept["loss"] += "loss" in before and before["loss"]() is not None
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            before = {"batch": weakref.ref(batch), "hidden": weakref.ref(hidden), "loss": weakref.ref(loss)}
        print(kept)

    main()
"""


def test_what_a_script_rebinds_is_free_at_once(tmp_path: Path) -> None:
    """Or the job would hold a batch and its activations more than it was made for."""
    with Cli(tmp_path) as cli:
        done = cli.run("run", "--nproc-per-node", "1", "--spares", "0", "SCRIPT", script=REBINDS)
    assert done.returncode == 0, done.stderr
    assert "set-up is done; protection starts with the first step" in done.stderr
    assert done.stdout == "{'batch': 0, 'hidden': 0, 'loss': 0}\n"


RELOADS = """
    import sys, weakref
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    class Shard(torch.utils.data.Dataset):
        def __init__(self, number):
            self.rows = torch.full((8, 8), float(number))

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, place):
            return self.rows[place]

    def main():
        dist.init_process_group("gloo")
        model = DistributedDataParallel(torch.nn.Linear(8, 8))
        optimizer = torch.optim.AdamW(model.parameters())
        shards, most = [], 0
        for number in range(12):
            shard = Shard(number)
            shards.append(weakref.ref(shard))
            for batch in torch.utils.data.DataLoader(shard, batch_size=2):
                optimizer.zero_grad()
                model(batch).pow(2).mean().backward()
                optimizer.step()
                most = max(most, sum(there() is not None for there in shards))
        print(most)

    main()
"""


def test_data_sets_that_a_script_replaces_are_free_when_the_next_one_trains(tmp_path: Path) -> None:
    with Cli(tmp_path) as cli:
        done = cli.run("run", "--nproc-per-node", "1", "--spares", "0", "SCRIPT", script=RELOADS)
    assert done.returncode == 0, done.stderr
    assert "set-up is done; protection starts with the first step" in done.stderr
    assert (
        int(done.stdout) <= 2
    )  # the one before is part of the state that the first step of the next one is compared with
