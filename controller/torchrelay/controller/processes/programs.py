"""The programs that the job's machines were told to run: compared when an agent comes.

Also the commands that go on from a checkpoint on each machine.
"""

from __future__ import annotations

from collections.abc import Iterable

from torchrelay.controller.decide.restart.same_program import agree, compared_with, imports_key
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.protocol.events import FilesDiffer
from torchrelay.protocol.messages import MachinesCompared, Member, Program


class Programs:
    def __init__(self, outbox: Outbox, job: Job) -> None:
        self._outbox = outbox
        self._job = job
        self._of: dict[str, Program] = {}
        self._before: dict[str, Member] = {}
        """Machines that an earlier controller knew, until they come."""

    def recall(self, members: Iterable[Member]) -> None:
        """Take in the machines that an earlier controller knew: some may be lost, and tell nothing any more."""
        self._before = {m.node: m for m in members}
        self._job.imports |= {m.node: m.imports for m in self._before.values()}

    def attached(self, node: str, program: Program) -> str:
        """Take in the program of a node whose agent has come. Return why the node cannot take part in this job, or empty."""
        imports = self._job.imports
        key = imports_key(program)
        is_known = node in self._of and imports.get(node) == key
        self._of[node] = program
        imports[node] = key
        if is_known:
            return ""
        refused: dict[str, None] = {}
        unlike = {imports[name]: name for name in sorted(self._of, reverse=True) if name != node}
        for other in sorted(unlike.values()):
            one, two = sorted((node, other))
            found = agree(one, self._of[one], two, self._of[two])
            refused |= dict.fromkeys(found.refused)
            for text in found.told:
                self._outbox.log("warning", text)
            if found.kept_apart and not self._job.imports_differ:
                self._job.imports_differ = True
                self._outbox.emit(FilesDiffer((one, two), found.kept_apart))
        return "the machines of this job were not told the same: " + "; ".join(refused) if refused else ""

    def compare(self, program: Program) -> MachinesCompared:
        """Return what would be said of a machine that may come, which has no name yet."""
        return compared_with(self._of, program)

    def forget(self, node: str) -> None:
        """Drop a node that takes no part."""
        self._of.pop(node, None)

    def resume_commands(self, directory: str) -> dict[str, str]:
        """Return, for each machine, the command that goes on from the checkpoint there; empty on one machine.

        One that has come back counts once, by its present name.
        """
        commands = {n: m.resume_command for n, m in self._before.items() if m.resume_command}
        commands |= {n: p.resume_command for n, p in self._of.items()}
        names = {self._number(node): node for node in commands}
        if len(names) < 2:
            return {}
        return {n: commands[n].replace("{directory}", directory) for n in sorted(names.values())}

    def _number(self, node: str) -> int | str:
        """Return which of the machines it is, or its name where that is not known."""
        known = self._job.nodes.get(node)
        if known is not None and known.node_rank >= 0:
            return known.node_rank
        return self._before[node].node_rank if node in self._before else node
