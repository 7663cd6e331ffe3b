"""What to change in a script for what is not protected, by the kind of a gap in the protection report. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from torchrelay.protocol.messages import Coverage, RankGap
from torchrelay.protocol.names import GAP_EFFECTS

ADVICE = {
    "iterator": "draw the batches with a loop over a DataLoader, or make the iterator anew from what can be captured, such as a "
    "list and a position",
    "kept-workers": "set persistent_workers=False, or keep no state in the data set of the workers",
    "data": "leave the data as it is, and change an order of indices, plain values or tensors of its own, in the thread that "
    "trains",
    "ddp": "use DistributedDataParallel without the named feature",
    "wrapper-of-a-step": "wrap the model in front of the loop that trains it",
    "second-loop": "step the optimizer in one loop only, or make the two loops follow each other",
    "step-behind-loop": "step in the loop, at its last batch (`if i + 1 == len(loader)`)",
    "no-loop": "put the optimizer's step into a loop of the script's own files",
    "large-fresh-tensor": "keep what is read after the step in a buffer of the module, or compute it before the step",
    "late-read": "read the tensor before the optimizer step, or after the last write to it, and do not write through `.data`",
    "no-replica": "give --buddy-every K: ranks keep copies of what nobody else holds, and go back to them",
    "fsdp1": "keep the tensor elsewhere than in the parameter, use fully_shard, or give --buddy-every K",
    "array": "keep the array in a tensor, or make it anew in each step",
    "object": "keep what changes in plain values, lists, dicts or tensors, or make the object anew in each step",
    "closure": "use an optimizer that calls its closure once a step",
    "side-thread": "let only the thread that trains communicate",
    "compiled": "give torch.compile `dynamic=True` or `dynamic=False`, or let all batches have one size (drop_last=True)",
    "other-process": "keep what the step depends on in this process (environments that run here, in no process of their own)",
    "hook": "register hooks of modules in front of the training loop, or remove them in the step that registers them",
    "store": "count in a variable of each rank in place of a store",
    "open-collective": "wait for the collective in the step that begins it, or begin it behind the optimizer step",
    "device-graph": "capture graphs of what does not communicate alone (torch.compile without mode='reduce-overhead' around it)",
    "symmetric-memory": "use plain collectives in place of symmetric memory",
    "nvshmem": "use plain collectives in place of NVSHMEM",
    "shared-device-memory": "give other processes copies in host memory",
    "async-save": "save with the thread that trains",
    "text": "put the file back as it was, or start the job again with the new one",
    "own-result": "let all ranks take part in what communicates after the optimizer step",
}


@dataclass(frozen=True)
class ScriptChange:
    """One change of a script. `file`, `line`: where in the script; empty and 0 if no line makes it."""

    file: str
    line: int
    text: str
    effect: str
    advice: str


def changes(coverage: Coverage | None, copy: Path, folder: Path) -> list[ScriptChange]:
    """Return one change for each gap. Paths in `copy`, where the script ran, become paths in `folder`, where the user has it."""
    return [] if coverage is None else [_change(gap, copy, folder) for gap in _once(coverage.gaps)]


def _once(gaps: Iterable[RankGap]) -> list[RankGap]:
    return list({(g.kind, g.file, g.line, g.text): g for g in gaps}.values())


def _change(gap: RankGap, copy: Path, folder: Path) -> ScriptChange:
    texts = (gap.file, gap.text)
    file, text = (t.replace(str(copy), str(folder)) for t in texts)
    return ScriptChange(file, gap.line, text, GAP_EFFECTS.get(gap.effect, gap.effect), ADVICE.get(gap.kind, ""))
