"""Remember what steps were seen to do with the gradients of which parameters, so that most need no look and no copy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torchrelay.shim.gradients.gradient_record import Learned
from torchrelay.shim.gradients.noted_gradient import Fate, NotedGradient

_LOOKS = 4
"""Steps in which gradients left over are looked at and copied. After these, they are looked at where a boundary is a power of 2."""


class Habits:
    def __init__(self) -> None:
        self.kept: set[str] = set()
        self.dropped: set[str] = set()
        self.zeroed: set[str] = set()
        """Paths of gradients, by what had become of them when they were seen last."""
        self._zeroed_by: dict[str, int] = {}
        """Path -> after how many writes since the last gate it was seen to be zero."""
        self._learned: Learned | None = None
        """All that was learned, for the journal; None: something was learned since."""
        self._boundary = self._seen = 0
        """The latest boundary, and how many boundaries there were."""
        self._looks = 0
        """Steps in which a gradient of unknown fate was left over."""
        self._kept_at = 0
        """The boundary since which the same gradients are kept, under the same names: there ranks compare them."""

    def at_boundary(self, boundary: int) -> None:
        self._boundary = boundary
        self._seen += 1

    def begin_again(self) -> None:
        self._looks = 0

    def rename(self, moved: Mapping[str, str]) -> None:
        """Follow parameters that are called otherwise by now. `moved`: their new paths, by the ones before."""
        taken = {*moved, *moved.values()}
        self._kept_at = self._boundary
        for paths in (self.kept, self.dropped, self.zeroed):
            found = {moved[path] for path in moved.keys() & paths}
            paths.difference_update(taken)
            paths.update(found)
        zeroed_by = {moved[path]: writes for path, writes in self._zeroed_by.items() if path in moved}
        self._zeroed_by = {p: writes for p, writes in self._zeroed_by.items() if p not in taken} | zeroed_by
        self._learned = None
        self.begin_again()  # what has taken a name of theirs is unknown

    def learn(self, found: Mapping[str, NotedGradient]) -> None:
        """Learn from the step that is over. `found`: the gradients that were there when it began."""
        by_fate: dict[Fate, list[str]] = {fate: [] for fate in Fate}
        for path, gradient in found.items():
            by_fate[gradient.fate].append(path)
        added = [path for path in by_fate[Fate.ADDED] if path not in self.kept]
        zeroed = [path for path in by_fate[Fate.ZEROED] if not found[path].was_zero]
        known = len(self.kept), len(self.dropped), len(self.zeroed)
        if added:
            self._kept_at = self._boundary + 1
        self.kept.update(added)
        self.dropped.difference_update(added, by_fate[Fate.ZEROED])
        self.dropped.update(by_fate[Fate.DROPPED])
        self.zeroed.update(zeroed)
        if known != (len(self.kept), len(self.dropped), len(self.zeroed)):
            self._learned = None

    def learned(self) -> Learned:
        if self._learned is None:
            kept, dropped, zeroed = (tuple(sorted(paths)) for paths in (self.kept, self.dropped, self.zeroed))
            self._learned = Learned(kept, dropped, zeroed, tuple(self._zeroed_by.items()), self._kept_at)
        return self._learned

    def take_over(self, learned: Learned) -> None:
        """Add what the lost rank had learned, in a process that joins."""
        self.kept |= {*learned.kept}
        self.dropped |= {*learned.dropped}
        self.zeroed |= {*learned.zeroed}
        self._zeroed_by |= dict(learned.zeroed_by)
        self._kept_at = learned.kept_at
        self._learned = None

    # Whether a gradient has to be looked at.

    def is_early(self) -> bool:
        """Return whether so few steps were seen that each second or third one may still do something else."""
        return self._seen <= _LOOKS

    def is_copied(self) -> bool:
        """Return whether gradients that are left over are still looked at, and copied, in each step."""
        return self._looks < _LOOKS

    def may_look(self, gradient: NotedGradient) -> bool:
        """Return whether to look at a gradient that was not written to since the boundary.

        To look in each step would cost as much as zeroing it.
        """
        if gradient.path in self.dropped and not self.is_early():
            return False
        return bool(gradient.before) or self.is_copied() or self._is_mark()

    def to_copy(self, left: Iterable[NotedGradient]) -> list[NotedGradient]:
        """Return the gradients to copy when a step's first backward begins: nobody knows what the step does with them.

        `left`: the gradients that are left over then.
        """
        shed = set() if self.is_early() else self.dropped | self.zeroed
        unknown = [gradient for gradient in left if gradient.path not in shed]
        if not unknown:
            return []
        self._looks += 1
        return unknown if self._looks <= _LOOKS else []

    def _is_mark(self) -> bool:
        return self._boundary & (self._boundary - 1) == 0

    # Zeros.

    def was_zero(self, gradient: NotedGradient) -> bool:
        """Return whether the gradient is zero at the boundary, as far as that is known without a look at it."""
        if gradient.version == gradient.zero_at:
            return True
        return bool(gradient.before) and self._zeroed_by.get(gradient.path) == gradient.before

    def is_known_zero(self, gradient: NotedGradient, version: int) -> bool:
        """Return whether the gradient is zero in the step at `version`, as far as that is known without a look at it."""
        if version == gradient.zero_at:
            return True
        if gradient.before is None or self._is_mark():
            return False
        writes = gradient.before + version - gradient.version
        return writes > 0 and self._zeroed_by.get(gradient.path) == writes

    def saw_zero(self, gradient: NotedGradient, version: int) -> None:
        gradient.fate = Fate.ZEROED
        gradient.zero_at = version
        gradient.was_zero = gradient.was_zero or version == gradient.version
        if gradient.before is not None and gradient.before + version - gradient.version > 0:
            self._zeroed_by[gradient.path] = gradient.before + version - gradient.version
            self._learned = None
