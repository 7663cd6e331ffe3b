"""The programs that the job's machines were told to run: compared when an agent comes.

Also the commands that go on from a checkpoint on each machine.
"""

from __future__ import annotations

from torchrelay.controller.decide.restart.same_program import agree, imports_key
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.protocol.events import FilesDiffer
from torchrelay.protocol.messages import MachinesCompared, Program

_NOT_HERE_YET = "this machine"


class Programs:
    def __init__(self, outbox: Outbox, job: Job) -> None:
        self._outbox, self._job = outbox, job
        self._of: dict[str, Program] = {}

    def attached(self, node: str, program: Program) -> str:
        """Take in the program of a node whose agent has come. Return why the node cannot take part in this job, or empty."""
        imports, key = self._job.imports, imports_key(program)
        is_known = node in self._of and imports.get(node) == key
        self._of[node], imports[node] = program, key
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
        found = [agree(node, known, _NOT_HERE_YET, program) for node, known in sorted(self._of.items())]
        refused = dict.fromkeys(text for each in found for text in each.refused)
        told = dict.fromkeys(text for each in found for text in (each.kept_apart, *each.told) if text)
        return MachinesCompared(tuple(sorted(self._of)), tuple(refused), tuple(told))

    def forget(self, node: str) -> None:
        """Drop a node that takes no part."""
        self._of.pop(node, None)

    def resume_commands(self, directory: str) -> dict[str, str]:
        """Return, for each machine, the command that goes on from the checkpoint there; empty on one machine."""
        if len(self._of) < 2:
            return {}
        return {n: p.resume_command.replace("{directory}", directory) for n, p in sorted(self._of.items())}
