"""What a set holds, in the order in which it yields it: two sets of the same elements may have other orders."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torchrelay.shim.adapters.cpython import set_tables
from torchrelay.shim.capture.values.alike import alike
from torchrelay.shim.capture.values.base_types import put_set_items


class SetContent:
    """The elements of a set, and the places that they have in it as far as these are known."""

    def __init__(self, obj: Any) -> None:
        self.items = [*set.__iter__(obj)]
        self.table = set_tables.table_of(obj)
        self._numbers = set_tables.numbers(obj)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def same(self, other: SetContent) -> bool:
        """Return whether the other one has like elements, in the same places."""
        if self.table is None or other.table is None:
            return alike({*self.items}, {*other.items})
        return self.table == other.table and alike(self.items, other.items)

    def is_in(self, obj: Any) -> bool:
        """Return whether a set holds these very objects, in these places."""
        now = [*map(id, set.__iter__(obj))]
        own = [*map(id, self.items)]
        if self._numbers is None or self.table is None:
            return {*now} == {*own}
        return set_tables.numbers(obj) == self._numbers and now == own

    def put(self, obj: Any) -> None:
        put(obj, self.items, self.table)


def put(obj: Any, items: list[Any], table: set_tables.SetTable | None) -> None:
    """Give a set these elements, in these places where that can be."""
    if table is None or not set_tables.put(obj, items, table):
        put_set_items(obj, items)
