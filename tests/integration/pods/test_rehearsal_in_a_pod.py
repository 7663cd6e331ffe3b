"""A process that is parked in a pod, whose agent the test plays, rehearses a rank of another pod, and stays parked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_pod import FakePod
from support.ports import free_port

from torchrelay.protocol.journals.journal import read_journal
from torchrelay.protocol.messages import Begin, Rehearse, Rehearsed, Warm
from torchrelay.protocol.names import REHEARSAL_OPEN, REHEARSAL_SAME

SCRIPT = """
import os, sys, time
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
net = DDP(torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(net.parameters())
seen = []
for step in range(6):
    while step == 5 and not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
    optimizer.zero_grad()
    net(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    seen.append(step)
print("trained", len(seen), flush=True)
dist.destroy_process_group()
"""


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[tuple[FakePod, FakePod]]:
    made = FakePod(tmp_path / "rank"), FakePod(tmp_path / "spare")
    yield made
    for pod in made:
        pod.close()


def rank_and_spare(pods: tuple[FakePod, FakePod], folder: Path, **environ: str) -> tuple[Rehearse, int]:
    """A rank that stands in its sixth step, and a spare that is warm: what the spare is to rehearse, and its process."""
    script, go, (rank, spare) = folder / "train.py", folder / "go", pods
    script.write_text(SCRIPT)
    launch = {
        "RANK": "0",
        "LOCAL_RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    rank.start(str(script), str(go), **launch)
    spare.start(str(script), str(go), TORCHRELAY_SPARE="1", **environ)
    trains, parked = rank.wait_for(1).pid, spare.wait_for(1).pid
    journal = rank.folder / f"journal-{trains}"
    spare.until(lambda: any(isinstance(r, Warm) for r in spare.reports.get(parked, ())))
    rank.until(lambda: 5 in read_journal(journal)[0])
    boundaries, _, set_up = read_journal(journal)
    return Rehearse(1, 0, 1, 5, launch, set_up, boundaries[5]), parked


def result(spare: FakePod, parked: int) -> Rehearsed:
    spare.until(lambda: any(isinstance(r, Rehearsed) for r in spare.reports[parked]))
    (told,) = (r for r in spare.reports[parked] if isinstance(r, Rehearsed))
    return told


@pytest.mark.core
def test_a_parked_process_rehearses_and_can_still_begin(pods: tuple[FakePod, FakePod], tmp_path: Path) -> None:
    order, parked = rank_and_spare(pods, tmp_path)
    spare = pods[1]
    spare.order(order)
    told = result(spare, parked)
    assert (told.outcome, told.rank, told.boundary, told.reason) == (REHEARSAL_SAME, 0, 5, "")
    assert told.nodes > 0
    (tmp_path / "go").touch()
    pods[0].until(lambda: "trained 6" in pods[0].output.read_text())
    spare.order(Begin("train.1", str(spare.folder), False, {**order.env, "MASTER_PORT": str(free_port())}))
    spare.until(lambda: "trained 6" in spare.output.read_text())


def test_without_a_place_for_its_files_nothing_is_rehearsed_and_the_process_stays(
    pods: tuple[FakePod, FakePod], tmp_path: Path
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    order, parked = rank_and_spare(pods, tmp_path, TMPDIR=str(temporary))
    spare = pods[1]
    temporary.rename(tmp_path / "gone")
    spare.order(order)
    told = result(spare, parked)
    assert told.outcome == REHEARSAL_OPEN
    assert told.reason.startswith("there is no place for its files: ")
    (tmp_path / "go").touch()
    spare.order(Begin("train.1", str(spare.folder), False, {**order.env, "MASTER_PORT": str(free_port())}))
    spare.until(lambda: "trained 6" in spare.output.read_text())
