"""One loss after the other, with one spare that is made anew each time: nothing changes, and nothing piles up.

TORCHRELAY_TEST_ROUNDS: how many losses (6 if not set; `make test-long` has 50); TORCHRELAY_TEST_SEED: repeats a series.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from faults.conftest import Undisturbed
from support.footprint import Footprint, children_of, files_left, footprint, parts_of, shared_memory_of
from support.machines import worker_of
from support.relay_run import assert_unharmed, read_events, relay

from torchrelay.protocol.options.faults import INJECT_PHASES

LOSSES = int(os.environ.get("TORCHRELAY_TEST_ROUNDS", "6"))
SEED = int(os.environ["TORCHRELAY_TEST_SEED"])
RANKS, APART, STEPS_PER_EPOCH = 3, 4, 11
SETTLED_AFTER = 3
"""Losses until all that is made once has been made. So many of the first and of the last losses are compared."""
STRAY = 2
"""The least that was held may differ by so much: a spare that is there has a descriptor or two of each part that knows it."""
GROWTH_BYTES = 150 << 10
"""For each further loss at most so much, of what is remembered of each process that there was."""
WARM_UP_BYTES = 2 << 20
"""What allocators keep of the first losses, and what a migration holds while it runs: 1.6 MiB between the third and the sixth
loss, about 120 KiB a loss from the sixth on."""
LOSS_S = 40.0
LOOK_S = 0.1
TEMPORARY = "tmp"


@dataclass
class Held:
    """What the parts of the job hold from each migration to the next one, look by look, and how many files there were in shared
    memory and in its temporary folder at the first look. `events`: where to see that. `stays`: the rank whose process is looked at.
    """

    events: Path
    temporary: Path
    stays: int
    looks: list[list[dict[str, Footprint]]] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    looked_s: float = 0.0
    _pid: int = 0

    def look(self, command: int) -> None:
        if time.monotonic() < self.looked_s + LOOK_S:
            return
        self.looked_s = time.monotonic()
        done = sum(e["name"] == "migration_finished" for e in read_events(self.events))
        parts = parts_of(command)
        if done == 0 or (agent := parts.get("agent")) is None:
            return
        with suppress(OSError):  # one of them may end at this moment
            self._pid = next(
                (pid for pid in children_of(agent.pid) if worker_of(pid) == f"n0.w{self.stays}"), self._pid
            )
        first = footprint(self._pid)
        if first is None or len(parts) != 2:
            return
        if done > len(self.looks):
            self.looks += [[] for _ in range(done - len(self.looks))]
            self.files.append(len(files_left(*shared_memory_of(agent.pid), self.temporary)))
        self.looks[-1].append({**parts, "rank": first})

    def least(self, loss: slice, part: str, held: str) -> int:
        """Return the least that a part held after these losses. More is held while a migration or a spare is under way."""
        return min(int(getattr(look[part], held)) for looks in self.looks[loss] for look in looks)

    def told(self) -> str:
        """One line for each part and loss after which it was looked: the last size, and the least and the most of the rest."""
        lines = ["loss  part        KiB  descriptors  threads  looks"]
        for number, looks in enumerate(self.looks, 1):
            for name in looks[-1] if looks else ():
                seen = [look[name] for look in looks]
                descriptors, threads = [p.descriptors for p in seen], [p.threads for p in seen]
                lines.append(
                    f"{number:4}  {name:10} {seen[-1].anonymous_bytes >> 10:6} {min(descriptors):5} to {max(descriptors):3}"
                    f" {min(threads):3} to {max(threads):2} {len(looks):6}"
                )
        return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.timeout(240 + LOSS_S * LOSSES)
def test_losses_in_a_row_find_a_new_spare_each_and_leave_nothing_behind(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    chance = random.Random(SEED)
    stays = chance.randrange(RANKS)
    print(f"\nTORCHRELAY_TEST_SEED={SEED}: {LOSSES} losses of all ranks but {stays}", flush=True)
    struck = [chance.choice([rank for rank in range(RANKS) if rank != stays]) for _ in range(LOSSES)]
    faults = [
        f"kill:rank={rank},step={5 + APART * n},phase={chance.choice(INJECT_PHASES)}" for n, rank in enumerate(struck)
    ]
    epochs = str((5 + APART * LOSSES) // STEPS_PER_EPOCH + 2)
    temporary = tmp_path / TEMPORARY
    temporary.mkdir()
    held = Held(tmp_path / "events.jsonl", temporary, stays)
    run = relay(
        tmp_path,
        "ddp.py",
        epochs,
        ranks=RANKS,
        inject=faults,
        options=("--refill", "--tee=3", f"--log-dir={tmp_path / 'logs'}"),
        environment={"TMPDIR": str(temporary), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")},
        watch=held.look,
        limit_s=120 + LOSS_S * LOSSES,
    )
    print(held.told(), flush=True)
    assert_unharmed(run, undisturbed("ddp.py", epochs, ranks=RANKS), RANKS, faults, LOSSES)
    assert run.named("process_respawned") == []
    assert run.named("spare_dropped") == []
    assert [m["spares"] for m in run.committed()] == [[f"n0.s{n}"] for n in range(LOSSES)]
    assert len(run.named("spare_made")) >= LOSSES - 1
    seen = [looks for looks in held.looks if looks]
    assert len(seen) >= LOSSES - 1, "the job was not seen after each loss"
    first, settled, last = seen[0][0], seen[SETTLED_AFTER - 1][-1], seen[-1][-1]
    early, late = slice(SETTLED_AFTER), slice(-SETTLED_AFTER, None)
    for name in first:
        assert first[name].pid == settled[name].pid == last[name].pid
        for what in ("descriptors", "threads"):
            assert held.least(late, name, what) <= held.least(early, name, what) + STRAY, (name, what)
        grown = last[name].anonymous_bytes - settled[name].anonymous_bytes
        assert grown <= WARM_UP_BYTES + GROWTH_BYTES * (len(seen) - SETTLED_AFTER), name
    assert held.files[-1] <= max(held.files[:SETTLED_AFTER]), held.files
    assert sorted(temporary.iterdir()) == []
