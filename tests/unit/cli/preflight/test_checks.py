"""One list of checks, of which a run makes those that are quick, and doctor all."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate
from support.repository_script import script

from torchrelay.cli.command_line.checked import check
from torchrelay.cli.command_line.given import GivenOptions
from torchrelay.cli.commands import doctor
from torchrelay.cli.machine import LocalMachine
from torchrelay.cli.preflight.checks import CHECKS, Check, CheckResult, Group, Subject, before_a_run, look
from torchrelay.cli.preflight.facts import (
    UNLIMITED,
    Clock,
    Compared,
    FolderFacts,
    Gpus,
    Memory,
    ProcessLimits,
    Reader,
    WorkerFacts,
)
from torchrelay.cli.preflight.finding import Finding, FindingMark, warning, well
from torchrelay.cli.preflight.meeting import meeting_place
from torchrelay.cli.preflight.subject import subject_of
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.names import ENV_SECRET

GIB = 1 << 30
ROOT = Path(__file__).parents[4]


class FakeProbe:
    """A machine on which all is well, but for what `changes` says."""

    def __init__(self, **changes: Any) -> None:
        self._changes = changes
        self.worker: WorkerFacts = changes.get(
            "worker", WorkerFacts("", "3.11.7", "/usr/bin/python", "2.13.0", "", "", ("gloo",), True)
        )
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name not in WELL:
            raise AttributeError(name)

        def answer(*_: object) -> Any:
            self.asked.append(name)
            return self._changes.get(name, WELL[name])

        return answer


WELL: dict[str, Any] = {
    "folder": FolderFacts(Path("/somewhere"), "", GIB, GIB),
    "state_folder_problem": "",
    "shared_memory": FolderFacts(Path("/dev/shm"), "", GIB, GIB),
    "cache_folder": FolderFacts(Path("/cache")),
    "limits": ProcessLimits(4096, UNLIMITED),
    "memory": Memory(UNLIMITED, 0, 8 * GIB),
    "has_pidfd": True,
    "kernel": "6.1",
    "loopback_problem": "",
    "reader": Reader("py-spy"),
    "clock": Clock(2e9, 1e9, True),
    "gpus": Gpus(),
    "address_problem": "",
    "port_holder": "",
    "listening_problem": "",
    "compared": Compared("node0:29476", ("n0",)),
}
OF_TWO = GivenOptions("", nnodes="2", master_addr="node0", master_port=29500)
MEETING = meeting_place(check(OF_TWO, LocalMachine(), {ENV_SECRET: "0123456789abcdef"}, needs_script=False))
JOB = Subject(Path("/state"), (Path("/jit"), Path("/other")), command="train.py")


def probe(**changes: Any) -> Any:
    return FakeProbe(**changes)


def marks(job: Subject = JOB, **changes: Any) -> dict[str, FindingMark]:
    return {each.check.name: each.finding.mark for each in look(CHECKS, probe(**changes), job)}


def test_where_all_is_well_every_check_says_so() -> None:
    found = look(
        CHECKS,
        probe(),
        dataclasses.replace(
            JOB, addresses=("node0",), controller_port=29476, metrics=("127.0.0.1", 29480), meeting=MEETING
        ),
    )
    assert {each.check.name for each in found} == {check.name for check in CHECKS}
    assert {each.finding.mark for each in found} == {FindingMark.WELL}
    assert [each.check.name for each in found].count("jit-dir") == 2


def test_without_torch_nothing_is_said_of_what_it_has() -> None:
    told = marks(worker=WorkerFacts("", "3.11.7", "/usr/bin/python", torch_problem="none", let_in=True))
    assert told["torch"] is FindingMark.BAD
    assert {"backend", "shim"} & told.keys() == set()
    assert told["sitecustomize"] is FindingMark.WELL


def test_a_python_that_cannot_be_started_is_told_once() -> None:
    told = marks(worker=WorkerFacts("no such file"))
    assert told["python"] is FindingMark.BAD
    assert {"torch", "backend", "sitecustomize", "shim"} & told.keys() == set()


def test_a_program_that_brings_its_own_interpreter_is_not_asked_for_it() -> None:
    told = marks(dataclasses.replace(JOB, runs_python=False))
    assert {"python", "torch", "backend", "sitecustomize", "shim"} & told.keys() == set()


def test_a_run_asks_for_nothing_that_takes_long() -> None:
    asked = probe()
    assert before_a_run(asked, JOB) == []
    assert set(asked.asked) == {"shared_memory", "has_pidfd", "kernel", "loopback_problem", "folder"}


def test_a_run_is_refused_with_everything_that_is_wrong() -> None:
    wrong = {
        "folder": FolderFacts(Path("/proc/x"), "nothing can be written into /proc"),
        "shared_memory": FolderFacts(Path("/dev/shm"), "", 100, GIB),
    }
    with pytest.raises(UserError) as caught:
        before_a_run(probe(**wrong), JOB)
    assert "--jit-dir /proc/x: nothing can be written into /proc" in str(caught.value)
    assert "/dev/shm has 100 B of 1.0 GiB free" in str(caught.value)
    assert "--shm-size" in str(caught.value)


def test_a_run_is_told_what_may_not_be_enough() -> None:
    (told,) = before_a_run(probe(shared_memory=FolderFacts(Path("/dev/shm"), "", 4 << 20, GIB)), JOB)
    assert told.mark is FindingMark.WARNING


def test_every_hint_leads_to_a_section_that_is_there() -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert {check.anchor for check in CHECKS} <= anchors


def found(name: str, finding: Finding) -> CheckResult:
    return CheckResult(Check(name, Group.MACHINE, "doctor-limits", lambda p, j: []), finding)


def test_what_is_well_takes_one_line_and_the_rest_says_what_to_do_and_where_that_is_explained() -> None:
    told = [str(line) for line in doctor.lines([found("a", well("fine")), found("b", warning("low", "raise it"))])]
    assert told == [
        "this machine",
        "------------",
        "√ fine",
        "‼ low",
        "    raise it",
        "    see docs/cli.md#doctor-limits",
        "",
        "jobs run here; something that they may need later does not work",
    ]
    assert str(doctor.lines([found("a", well("fine"))], plain=True)[2]) == "ok fine"


def test_programs_get_all_of_it() -> None:
    told = doctor.as_json([found("a", well("fine")), found("b", warning("low", "raise it"))])
    printed = json.loads(json.dumps(dataclasses.asdict(told)))
    validate(printed, script("generate_schemas").schemas()["doctor.schema.json"])
    assert printed == {
        "worst": "warning",
        "checks": [
            {
                "check": "a",
                "group": "this machine",
                "mark": "well",
                "text": "fine",
                "remedy": "",
                "see": "docs/cli.md#doctor-limits",
            },
            {
                "check": "b",
                "group": "this machine",
                "mark": "warning",
                "text": "low",
                "remedy": "raise it",
                "see": "docs/cli.md#doctor-limits",
            },
        ],
    }


def test_a_command_line_that_is_wrong_is_one_finding_among_the_others(tmp_path: Path) -> None:
    job = subject_of(GivenOptions("nowhere.py", jit_dirs=(tmp_path,)), LocalMachine(), {})
    assert "nowhere.py: no such file" in job.problem
    assert job.jit_dirs == (tmp_path,)
    told = marks(job)
    assert told["command"] is FindingMark.BAD
    assert told["jit-dir"] is FindingMark.WELL


def test_without_a_script_the_machine_is_looked_at_alone() -> None:
    job = subject_of(GivenOptions("", nproc_per_node="4", spares=1), LocalMachine(), {})
    assert (job.processes, job.problem, job.command) == (5, "", "")
    assert "command" not in marks(job)
