"""Tells whether all machines of a job were told to run the same.

A difference would show only when a rank moves between machines.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torchrelay.protocol.messages import MachinesCompared, Program

SHOWN = 3
_ASKS = "this machine"


@dataclass(frozen=True)
class ProgramAgreement:
    """The outcome. `refused`: why the job must not begin, `told`: what may go well; both empty if nothing differs.

    `kept_apart`: why no rank may continue on the other machine; the job begins all the same, as it would with torchrun.
    """

    refused: tuple[str, ...] = ()
    told: tuple[str, ...] = ()
    kept_apart: str = ""


def agree(node: str, one: Program, other_node: str, other: Program) -> ProgramAgreement:
    """Compare what two machines run. `one` is what `node` runs. What is not known of one of them is not compared."""
    refused: list[str] = []
    told: list[str] = []
    kept_apart = ""
    if one.script and other.script and one.script != other.script:
        refused.append(
            f"{node} runs {one.script}, {other_node} runs {other.script}: a rank cannot move between them. "
            "Put the script at the same path on all machines"
        )
    elif one.sha256 and other.sha256 and one.sha256 != other.sha256:
        refused.append(f"{one.script} is another file on {other_node} than on {node}: put the same one on all machines")
    else:
        found = _compare_sources(node, one, other_node, other)
        told += found.told
        kept_apart = found.kept_apart
    if one.torch and other.torch and one.torch != other.torch:
        refused.append(
            f"{node} has torch {one.torch}, {other_node} has {other.torch}: install the same version on all machines"
        )
    if one.python and other.python and _minor(one.python) != _minor(other.python):
        refused.append(
            f"{node} has Python {one.python}, {other_node} has {other.python}: use the same version on all machines"
        )
    elif one.python and other.python and one.python != other.python:
        told.append(f"{node} has Python {one.python}, {other_node} has {other.python}")
    if one.script and other.script and one.inject != other.inject:
        refused.append(
            f"the faults of --inject differ: {_listed(one.inject)} on {node}, {_listed(other.inject)} on {other_node}. "
            "Give the same on all machines"
        )
    for option, here, there in _numbers(one, other):
        if here and there and here != there:
            refused.append(
                f"{node} was given {option} {here}, {other_node} {option} {there}: give the same number on all machines"
            )
    if where := _not_shared(node, one, other_node, other):
        if one.jit_given or other.jit_given:
            refused.append(
                f"--jit-dir: {where}. Mount the same storage on all machines, or leave --jit-dir out: "
                "each then has a folder of its own"
            )
        else:
            told.append(
                f"{where}: where no rank can take over, the script starts from its beginning. "
                "--jit-dir names a folder that all machines share"
            )
    return ProgramAgreement(tuple(refused), tuple(told), kept_apart)


def compared_with(known: Mapping[str, Program], program: Program) -> MachinesCompared:
    """Return what would be said of the machine that asks, as it has no name yet, where `known` are there."""
    found = [agree(node, theirs, _ASKS, program) for node, theirs in sorted(known.items())]
    refused = dict.fromkeys(text for each in found for text in each.refused)
    told = dict.fromkeys(text for each in found for text in (each.kept_apart, *each.told) if text)
    return MachinesCompared(tuple(sorted(known)), tuple(refused), tuple(told))


def imports_key(program: Program) -> str:
    """Return a key for what the script imports from its folder; empty if that is not known.

    It is the same for two machines where the script imports the same.
    """
    found = [f"{name} {program.sources.get(name, '')}" for name in sorted(program.imported)]
    return hashlib.sha256("\n".join(found).encode()).hexdigest() if found else ""


def _numbers(one: Program, other: Program) -> Iterable[tuple[str, int, int]]:
    yield "--nnodes", one.nnodes, other.nnodes
    yield "--nproc-per-node", one.nproc_per_node, other.nproc_per_node
    yield "--master-port", one.master_port, other.master_port


def _not_shared(node: str, one: Program, other_node: str, other: Program) -> str:
    """Return which folder of just-in-time checkpoints differs between both machines; empty if none does, or that is not known."""
    for here, mark, there, other_mark in zip(one.jit_dirs, one.jit_marks, other.jit_dirs, other.jit_marks):
        if mark and other_mark and mark != other_mark:
            return f"{here} on {node} and {there} on {other_node} are not the same folder: neither sees what the other writes"
    return ""


def _compare_sources(node: str, one: Program, other_node: str, other: Program) -> ProgramAgreement:
    """Compare what the script imports from its folder. Where it differs, no rank may move: it would compute something else.

    It may differ on purpose: paths and addresses of that machine.
    """
    if not (one.sources and other.sources):
        return ProgramAgreement()
    imported = {*one.imported, *other.imported}
    wrong = _differences(imported, node, one, other_node, other)
    told = []
    kept_apart = ""
    if wrong:
        kept_apart = (
            f"of what the script imports from its folder {wrong}: a lost rank is taken over only where these files are the "
            "same as on its machine, and the loss of a machine with files of its own is not covered. Put the same files on "
            "all machines, or what differs into the environment"
        )
    cut = [name for name, program in ((node, one), (other_node, other)) if program.sources_cut]
    if cut:
        told.append(
            f"the script's folder on {' and '.join(cut)} has too many Python files to be compared: only what the script "
            "imports by its text was. Put the script into a folder of its own to have all of them compared"
        )
    elif other_wrong := _differences({*one.sources, *other.sources} - imported, node, one, other_node, other):
        told.append(
            f"beside the script {other_wrong}: it does not import them by its text; if it uses them all the same, "
            "no rank of one of these machines takes over on the other"
        )
    return ProgramAgreement((), tuple(told), kept_apart)


def _differences(names: Iterable[str], node: str, one: Program, other_node: str, other: Program) -> str:
    """Return in words which of these files are not the same; empty if all are. A file that could not be read is not compared."""
    differ = []
    missing = []
    missing_there = []
    for name in sorted(names):
        here = one.sources.get(name)
        there = other.sources.get(name)
        if here is None:
            missing.append(name)
        elif there is None:
            missing_there.append(name)
        elif here and there and here != there:
            differ.append(name)
    return " and ".join(
        f"{_some(found)} {_are(found)} {what}"
        for found, what in (
            (differ, f"not the same on {node} and {other_node}"),
            (missing, f"not on {node}"),
            (missing_there, f"not on {other_node}"),
        )
        if found
    )


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _some(names: Sequence[str]) -> str:
    return ", ".join((*names[:SHOWN], *([f"{len(names) - SHOWN} more"] if len(names) > SHOWN else [])))


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _listed(faults: tuple[str, ...]) -> str:
    return " ".join(faults) or "none"
