"""What the parts of a long run hold while nothing is under way, and whether that grows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from support.footprint import Footprint, files_left, footprint, parts_of, shared_memory_of

SETTLED_AFTER = 3
"""Faults until all that is made once has been made."""
LEAST_LOOKS = 4
"""Fewer, once it has settled, say nothing."""
LEAST_FAULTS = 6
"""As little do looks over fewer."""
GROWTH_BYTES = 1 << 20
GROWTH_PER_FAULT_BYTES = 300 << 10
"""At most so much, of what is remembered of each process that there was."""
GROWTH_COUNT = 2
ENOUGH_FOR_ONE_OUT = 4


@dataclass(frozen=True)
class Look:
    """`faults`: how many there had been."""

    faults: int
    held: Footprint


class Held:
    """By part of the job and process; looks are compared by their low values, since some of them see what is about to go."""

    def __init__(self, temporary: Path) -> None:
        self._temporary = temporary
        self.looks: dict[tuple[str, int], list[Look]] = {}
        self.files: list[int] = []
        self._shared: set[Path] = set()

    def look(self, command_pid: int, faults: int) -> None:
        parts = parts_of(command_pid)
        own = footprint(command_pid)
        parts |= {"command": own} if own is not None else {}
        for name, held in parts.items():
            self.looks.setdefault((name, held.pid), []).append(Look(faults, held))
        if (agent := parts.get("agent")) is not None:
            folders = shared_memory_of(agent.pid)
            self._shared.update(folders)
            self.files.append(len(files_left(*folders, self._temporary)))

    def leaks(self) -> list[str]:
        """In words. To be asked when the job is over."""
        found = [f"{path} is left" for path in sorted(self._shared) if path.exists()]
        found += [f"{path} is left" for path in sorted(files_left(self._temporary) - {str(self._temporary)})]
        for (name, pid), looks in self._judged().items():
            faults = looks[-1].faults - looks[0].faults
            may_grow_bytes = GROWTH_BYTES + GROWTH_PER_FAULT_BYTES * faults
            held = [look.held for look in looks]
            found += _growth(f"{name} ({pid}) descriptors", [h.descriptors for h in held], GROWTH_COUNT)
            found += _growth(f"{name} ({pid}) threads", [h.threads for h in held], GROWTH_COUNT)
            found += _growth(f"{name} ({pid}) bytes", [h.anonymous_bytes for h in held], may_grow_bytes)
        settled = self.files[SETTLED_AFTER:]
        found += _growth("files", settled, GROWTH_COUNT) if len(settled) >= LEAST_LOOKS else []
        return found

    def told(self) -> str:
        """The first and the last look that counts, of each process that was seen often enough."""
        return "\n".join(
            f"{name} ({pid}), {len(looks)} looks over {looks[-1].faults - looks[0].faults} faults: "
            f"{_numbers(looks[0].held)} at first, {_numbers(looks[-1].held)} at last"
            for (name, pid), looks in self._judged().items()
        )

    def _judged(self) -> dict[tuple[str, int], list[Look]]:
        settled = {
            key: [look for look in looks if look.faults >= looks[0].faults + SETTLED_AFTER]
            for key, looks in self.looks.items()
        }
        return {key: looks for key, looks in settled.items() if _say_something(looks)}


def _say_something(looks: list[Look]) -> bool:
    return len(looks) >= LEAST_LOOKS and looks[-1].faults - looks[0].faults >= LEAST_FAULTS


def _numbers(held: Footprint) -> str:
    return f"{held.descriptors} descriptors, {held.threads} threads, {held.anonymous_bytes >> 10} KiB"


def _low(values: list[int]) -> int:
    """Return the lowest value but for one, where there are enough: a look may fall where a part is about to be made."""
    return sorted(values)[1 if len(values) >= ENOUGH_FOR_ONE_OUT else 0]


def _growth(name: str, values: list[int], most: int) -> list[str]:
    third = max(len(values) // 3, 1)
    before, after = _low(values[:third]), _low(values[-third:])
    return [f"{name}: {before} grew to {after} ({values})"] if after > before + most else []
