"""The programs that the job's machines were told to run: compared when an agent comes.

Also the commands that go on from a checkpoint on each machine.
"""

from __future__ import annotations

from torchrelay.controller.decide.restart.same_program import agree
from torchrelay.controller.outbox import Outbox
from torchrelay.protocol.messages import MachinesCompared, Program

_NOT_HERE_YET = "this machine"


class Programs:
    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._of: dict[str, Program] = {}

    def attached(self, node: str, program: Program) -> str:
        """Take in the program of a node whose agent has come. Return why the node cannot take part in this job, or empty."""
        is_new, self._of[node] = node not in self._of, program
        if not is_new or len(self._of) < 2:
            return ""
        other = next(name for name in sorted(self._of) if name != node)
        one, two = sorted((node, other))
        found = agree(one, self._of[one], two, self._of[two])
        for text in found.told:
            self._outbox.log("warning", text)
        return "the machines of this job were not told the same: " + "; ".join(found.refused) if found.refused else ""

    def compare(self, program: Program) -> MachinesCompared:
        """Return what would be said of a machine that may come, which has no name yet."""
        found = [agree(node, known, _NOT_HERE_YET, program) for node, known in sorted(self._of.items())]
        refused = dict.fromkeys(text for each in found for text in each.refused)
        told = dict.fromkeys(text for each in found for text in each.told)
        return MachinesCompared(tuple(sorted(self._of)), tuple(refused), tuple(told))

    def forget(self, node: str) -> None:
        """Drop a node that takes no part."""
        self._of.pop(node, None)

    def resume_commands(self, directory: str) -> dict[str, str]:
        """Return, for each machine, the command that goes on from the checkpoint there; empty on one machine."""
        if len(self._of) < 2:
            return {}
        return {n: p.resume_command.replace("{directory}", directory) for n, p in sorted(self._of.items())}
