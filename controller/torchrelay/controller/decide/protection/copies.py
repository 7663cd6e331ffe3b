"""Decides which node keeps copies of another one's journals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


class Ring:
    """The nodes that are there, machine by machine.

    `machines`: node -> the machine that it is on. A node that is not named is its own machine.
    """

    def __init__(self, nodes: Sequence[str], machines: Mapping[str, str]) -> None:
        self._nodes = nodes
        self._machines = machines
        self._everybody = sorted(set(nodes))
        self._place = {node: number for number, node in enumerate(self._everybody)}
        self._on: dict[str, list[str]] = {}
        self._among: dict[str, int] = {}
        for node in self._everybody:
            beside = self._on.setdefault(machines.get(node, node), [])
            self._among[node] = len(beside)
            beside.append(node)
        self._machine_order = sorted(self._on)
        self._next = dict(zip(self._machine_order, [*self._machine_order[1:], *self._machine_order[:1]]))

    def keeper_of(self, node: str) -> str:
        """Return the node in the same place on the next machine; empty if there is no other node.

        With its machine a node would lose copies that are there, too: the next node on the same machine is taken only where there
        is no other machine.
        """
        if node not in self._place:
            return Ring([*self._nodes, node], self._machines).keeper_of(node)
        if len(self._on) == 1:
            following = self._everybody[(self._place[node] + 1) % len(self._everybody)]
            return following if following != node else ""
        there = self._on[self._next[self._machines.get(node, node)]]
        return there[self._among[node] % len(there)]

    def are_beside(self, node: str, other: str) -> bool:
        """Return whether both are on one machine."""
        return self._machines.get(node, node) == self._machines.get(other, other)


def choose_keeper(node: str, nodes: Sequence[str], machines: Mapping[str, str]) -> str:
    """Return the keeper of one node, as `Ring.keeper_of`. `nodes`: those that are there."""
    return Ring(nodes, machines).keeper_of(node)
