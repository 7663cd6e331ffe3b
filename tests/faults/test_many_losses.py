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

from torchrelay.protocol.faults import INJECT_PHASES

LOSSES = int(os.environ.get("TORCHRELAY_TEST_ROUNDS", "6"))
SEED = int(os.environ["TORCHRELAY_TEST_SEED"])
RANKS, APART, STEPS_PER_EPOCH = 2, 4, 11
SETTLED_AFTER = 3
"""Losses until all that is made once has been made."""
STAYS = "n0.w0"
GROWTH_BYTES = 150 << 10
"""For each further loss at most so much, of what is remembered of each process that there was."""
WARM_UP_BYTES = 2 << 20
"""What allocators keep of the first losses, and what a migration holds while it runs: 1.6 MiB between the third and the sixth
loss, about 120 KiB a loss from the sixth on."""
LOSS_S = 40.0


LOOK_S = 0.25
TEMPORARY = "tmp"


@dataclass
class Held:
    """After each migration: what the parts of the job hold, and how many files there are in shared memory and in its temporary
    folder. `events`: where to see that.
    """

    events: Path
    temporary: Path
    parts: list[dict[str, Footprint]] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    looked_s: float = 0.0
    _stays: int = 0

    def look(self, command: int) -> None:
        if time.monotonic() < self.looked_s + LOOK_S:
            return
        self.looked_s = time.monotonic()
        done = sum(e["name"] == "migration_finished" for e in read_events(self.events))
        if done <= len(self.parts):
            return
        parts = parts_of(command)
        if (agent := parts.get("agent")) is None:
            return
        with suppress(OSError):  # one of them may end at this moment
            self._stays = next((pid for pid in children_of(agent.pid) if worker_of(pid) == STAYS), self._stays)
        first = footprint(self._stays)
        if first is not None and len(parts) == 2:
            self.parts.append({**parts, "rank 0": first})
            self.files.append(len(files_left(*shared_memory_of(agent.pid), self.temporary)))

    def told(self) -> str:
        """One line for each migration after which it was looked."""
        lines = ["loss  part        KiB  descriptors  threads  files"]
        for number, (parts, files) in enumerate(zip(self.parts, self.files), 1):
            lines += [
                f"{number:4}  {name:10} {held.anonymous_bytes >> 10:6} {held.descriptors:12} {held.threads:8} {files:6}"
                for name, held in parts.items()
            ]
        return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.timeout(240 + LOSS_S * LOSSES)
def test_losses_in_a_row_find_a_new_spare_each_and_leave_nothing_behind(
    undisturbed: Undisturbed, tmp_path: Path
) -> None:
    print(f"\nTORCHRELAY_TEST_SEED={SEED}: {LOSSES} losses", flush=True)
    chance = random.Random(SEED)
    faults = [f"kill:rank=1,step={5 + APART * n},phase={chance.choice(INJECT_PHASES)}" for n in range(LOSSES)]
    epochs = str((5 + APART * LOSSES) // STEPS_PER_EPOCH + 2)
    temporary = tmp_path / TEMPORARY
    temporary.mkdir()
    held = Held(tmp_path / "events.jsonl", temporary)
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
    assert len(held.parts) >= LOSSES - 1, "the job was not seen after each loss"
    settled, last, losses = held.parts[SETTLED_AFTER - 1], held.parts[-1], len(held.parts) - SETTLED_AFTER
    for name, before in settled.items():
        now = last[name]
        assert now.pid == before.pid
        # A look can fall into a migration, whose connections come and go. What stays is there at each later look.
        early, late = ([p[name] for p in part] for part in (held.parts[:SETTLED_AFTER], held.parts[SETTLED_AFTER:]))
        for seen in ("descriptors", "threads"):
            least_late, most_early = min(getattr(p, seen) for p in late), max(getattr(p, seen) for p in early)
            assert least_late <= most_early, (name, seen, [getattr(p[name], seen) for p in held.parts])
        grown = now.anonymous_bytes - before.anonymous_bytes
        assert grown <= WARM_UP_BYTES + GROWTH_BYTES * losses, (name, [p[name].anonymous_bytes for p in held.parts])
    assert held.files[-1] <= max(held.files[:SETTLED_AFTER]), held.files
    assert sorted(temporary.iterdir()) == []
