"""A command begins, or its job is started anew: where is the controller, and what are its processes started with?"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from torchrelay.cli.command_line.checked import check
from torchrelay.cli.command_line.given import GivenOptions
from torchrelay.cli.leading import find as finding
from torchrelay.cli.leading.ask import LeadAnswers
from torchrelay.cli.leading.find import Asked, FoundController, find, of_found
from torchrelay.cli.machine import LocalMachine
from torchrelay.protocol.errors import FatalError, UserError
from torchrelay.protocol.messages import LeadReply, LeadRequest

BEFORE = LeadReply(4, "job-1", "n0", quorum=True, place="n1", begun=True)
"""The controller that led until the job fell: it answers until it has ended."""
AFTER = LeadReply(
    7, "job-2", "n2", quorum=True, place="n1", restarts_done=2, scripts_begun=1, resume_dir="/jit/step-19"
)
STRANGER = LeadReply(0)
"""In the place of a reply: who answers there does not know the secret."""
ASKED = Asked(1, ("a:1", "b:1"), after=4, leads=False, again=True)


class Answers:
    """What is there, round by round; the last one stays."""

    def __init__(self, *rounds: dict[str, LeadReply]) -> None:
        self.rounds = list(rounds)
        self.asked: list[tuple[tuple[str, ...], LeadRequest]] = []

    async def ask_all(self, addresses: Sequence[str], request: LeadRequest, secret: bytes) -> LeadAnswers:
        self.asked.append((tuple(addresses), request))
        now = self.rounds.pop(0) if len(self.rounds) > 1 else self.rounds[0]
        there = [(a, now[a]) for a in addresses if a in now]
        return LeadAnswers(
            tuple((a, r) for a, r in there if r is not STRANGER), tuple(a for a, r in there if r is STRANGER)
        )


def found(
    monkeypatch: pytest.MonkeyPatch, asked: Asked, *rounds: dict[str, LeadReply]
) -> tuple[FoundController | None, Answers]:
    answers = Answers(*rounds)
    monkeypatch.setattr(finding, "ask_all", answers.ask_all)
    monkeypatch.setattr(finding, "ASK_S", 0.0)
    return asyncio.run(find(asked, b"secret", lambda text: None)), answers


def test_a_job_that_is_started_anew_is_found_where_it_is_led_then_and_never_the_one_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    where, answers = found(monkeypatch, ASKED, {"a:1": BEFORE}, {"a:1": BEFORE, "b:1": AFTER})
    assert where == FoundController("b:1", AFTER)
    assert answers.asked == [(("a:1", "b:1"), LeadRequest(1))] * 2


def test_it_has_to_have_enough_machines_and_a_place_for_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = LeadReply(7, "job-2", "n2", place="n1")
    where, answers = found(monkeypatch, ASKED, {"b:1": alone}, {"b:1": AFTER})
    assert (where, len(answers.asked)) == (FoundController("b:1", AFTER), 2)


def test_the_machine_that_led_leads_again_unless_another_one_does(monkeypatch: pytest.MonkeyPatch) -> None:
    leads = Asked(1, ("a:1",), after=4, leads=True, again=True)
    assert found(monkeypatch, leads, {"a:1": BEFORE})[0] is None
    assert found(monkeypatch, leads, {"a:1": AFTER})[0] == FoundController("a:1", AFTER)


def test_nobody_waits_without_end_for_a_job_that_is_not_started_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "ANEW_S", 0.0)
    with pytest.raises(FatalError, match="no machine has started the job anew"):
        found(monkeypatch, ASKED, {"a:1": BEFORE})


def test_a_machine_that_the_job_has_already_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "REFUSED_S", 0.0)
    with pytest.raises(UserError, match="machine 1 is there already; give each machine its own --node-rank"):
        found(monkeypatch, ASKED, {"a:1": LeadReply(7, "job-2", refused="machine 1 is there already")})


def test_a_name_that_is_not_known_is_told_once_and_again_when_that_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    answers = Answers({}, {}, {}, {"a:1": AFTER})
    unknown = [socket.gaierror(-2, "Name or service not known")] * 2

    def look_up(*_: object, **__: object) -> list[object]:
        if unknown:
            raise unknown.pop()
        return []

    monkeypatch.setattr(finding, "ask_all", answers.ask_all)
    monkeypatch.setattr(finding, "ASK_S", 0.0)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    asyncio.run(find(Asked(1, ("a:1",), after=0, leads=False, again=False), b"secret", said.append))
    known = "waiting for the controller at a:1"
    reason = "a is not known here (Name or service not known): check --master-addr, --controller and the network"
    assert said == [f"{known}; {reason}", known]


def test_a_program_with_another_secret_is_named_when_nobody_else_has_answered_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(finding, "STRANGER_S", 0.0)
    first = Asked(1, ("a:1", "b:1"), after=0, leads=False, again=False)
    with pytest.raises(UserError, match="at a:1 that does not know this job's secret: set the same TORCHRELAY_SECRET"):
        found(monkeypatch, first, {"a:1": STRANGER})
    where, _ = found(monkeypatch, first, {"a:1": STRANGER, "b:1": AFTER})
    assert where == FoundController("b:1", AFTER)


def test_a_job_with_another_secret_that_ends_in_time_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = iter(range(0, 1000, 8))
    monkeypatch.setattr(finding, "time", SimpleNamespace(monotonic=lambda: float(next(now_s))))
    first = Asked(1, ("a:1",), after=0, leads=False, again=False)
    where, answers = found(
        monkeypatch, first, *[{"a:1": STRANGER}, {}, {"a:1": STRANGER}, {"a:1": STRANGER}], {"a:1": AFTER}
    )
    assert (where, len(answers.asked)) == (FoundController("a:1", AFTER), 5)


def test_its_processes_are_started_with_what_the_one_that_leads_says() -> None:
    given = GivenOptions(__file__, (), nproc_per_node="1", nnodes="2", node_rank=1, master_addr="127.0.0.1")
    options = check(given, LocalMachine(), {"TORCHRELAY_SECRET": "0123456789abcdef"})
    follows = of_found(options, AFTER)
    assert (follows.node, follows.resume) == ("n1", Path("/jit/step-19"))
    assert (follows.restarts_done, follows.scripts_begun, follows.joins) == (2, 1, False)
    comes_back = of_found(options, BEFORE)
    assert (comes_back.joins, comes_back.resume) == (True, None)
