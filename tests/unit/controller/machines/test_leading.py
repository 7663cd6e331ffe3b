"""Whether a controller leads a job on several machines, and goes on without some of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torchrelay.controller.config import ControllerConfig
from torchrelay.controller.machines.leading import CANDIDATE_S, OTHERS_COME_S, Leading
from torchrelay.controller.outbox import Outbox
from torchrelay.controller.picture.job import Job
from torchrelay.protocol.messages import AgentHello, Follow, LeadRequest, Member
from torchrelay.protocol.options.members import member_line

MEMBERS = tuple(member_line(Member(f"n{rank}", rank, f"node{rank}:1")) for rank in range(3))


class Bench:
    """A controller of n1. `claimed`: what it has written into the shared folder; `may_claim`: whether it comes first."""

    def __init__(self, **config: object) -> None:
        base = ControllerConfig("run", 3, 1, "", "", "", "127.0.0.1", 1, epoch=4, follows=3, job_name="job", node="n1")
        self.job = Job(3)
        self.outbox = Outbox(self.job, lambda: 0.0)
        self.claimed: list[tuple[int, int]] = []
        self.may_claim = True
        self.leading = Leading(replace(base, **config), self.job, self.outbox, self._claim)

    def _claim(self, after: int, epoch: int) -> bool:
        self.claimed.append((after, epoch))
        return self.may_claim

    def attach(self, *ranks: int, now_s: float = 0.0, job: str = "", epoch: int = 0) -> None:
        for rank in ranks:
            hello = AgentHello(f"n{rank}", rank, "h", (), job=job, epoch=epoch, candidate=f"node{rank}:1")
            self.job.attach(hello, now_s)
            self.leading.attached(hello, now_s)

    def follows(self, rank: int) -> None:
        """Its command says that it does."""
        self.leading.answer(LeadRequest(rank, f"n{rank}", "job", self.leading.epoch), True, 0, 0.0)

    def followers(self) -> list[str]:
        return [node for node, order in self.outbox.take()[0] if isinstance(order, Follow)]


def taking_over(count: int = 3, **config: object) -> Bench:
    return Bench(takes_over=True, members=MEMBERS[:count], **config)


def test_one_that_takes_over_leads_once_more_than_half_of_the_machines_are_there() -> None:
    bench = taking_over()
    bench.attach(1)
    bench.leading.tick(0.0)
    assert (bench.leading.is_led, bench.followers()) == (False, [])
    bench.attach(2)
    bench.leading.tick(1.0)
    assert (bench.leading.is_led, sorted(bench.followers())) == (True, ["n1", "n2"])
    assert bench.claimed == []


def test_one_to_which_too_few_come_stands_down() -> None:
    bench = taking_over()
    bench.attach(1)
    bench.leading.tick(0.0)
    bench.job.nodes["n1"].heard_s = CANDIDATE_S
    bench.leading.tick(CANDIDATE_S - 0.1)
    assert bench.leading.stood_down == ""
    bench.leading.tick(CANDIDATE_S)
    assert "1 of 3 machines is there" in bench.leading.stood_down
    assert bench.followers() == []


@pytest.mark.parametrize("first", [True, False])
def test_half_of_the_machines_are_enough_for_whoever_claims_first(first: bool) -> None:
    bench = taking_over(2, shared=True)
    bench.may_claim = first
    bench.attach(1)
    bench.leading.tick(0.0)
    assert bench.claimed == [], "the others may still come"
    bench.leading.tick(OTHERS_COME_S)
    assert bench.claimed == [(3, 4)]
    assert (bench.leading.is_led, bool(bench.leading.stood_down)) == (first, not first)


def test_half_without_a_shared_folder_is_enough_for_whoever_leads_already_alone() -> None:
    bench = taking_over(2)
    bench.attach(1)
    bench.leading.tick(0.0)
    bench.job.nodes["n1"].heard_s = CANDIDATE_S
    bench.leading.tick(CANDIDATE_S)
    assert "--jit-dir that all machines share" in bench.leading.stood_down
    leads = Bench(nnodes=2)
    leads.attach(0, 1)
    assert leads.leading.may_give_up("n0", 1.0)


def test_one_that_leads_claims_before_it_goes_on_with_half_and_has_a_new_epoch_then() -> None:
    bench = Bench(nnodes=2)
    bench.attach(0, 1)
    for rank in (0, 1):
        reply = bench.leading.answer(LeadRequest(rank, f"n{rank}", "job", 4, True), True, 0, 0.0)
    assert reply.shared
    bench.followers()
    assert bench.leading.may_give_up("n0", 1.0)
    assert bench.claimed == [(4, 5)]
    assert bench.leading.epoch == 5
    assert sorted(bench.followers()) == ["n0", "n1"]
    bench.may_claim = False
    assert bench.leading.may_give_up("n0", 1.0), "it was the first to say so"
    bench.attach(0)
    assert not bench.leading.may_give_up("n0", 1.0), (
        "n0 knows the epoch now, and may have been the first to claim the next"
    )
    assert "another one leads" in bench.leading.stood_down


def half_of_two(may_claim: bool, hears: str = "") -> Bench:
    """n1 leads, and does not hear n0 any more."""
    bench = Bench(nnodes=2, lease_s=60.0)
    bench.attach(0, 1)
    for rank in (0, 1):
        bench.leading.answer(LeadRequest(rank, f"n{rank}", "job", 4, True), True, 0, 0.0)
    bench.may_claim = may_claim
    for now_s in (10.0, 39.0, 40.0):
        bench.job.nodes["n1"].heard_s = now_s
        assert bench.claimed == []
        bench.leading.keep(now_s)
    return bench


def test_one_that_hears_half_of_the_machines_says_that_it_leads_on_before_its_own_lease_is_over() -> None:
    bench = half_of_two(may_claim=True)
    assert (bench.claimed, bench.leading.epoch) == ([(4, 5)], 5)
    assert bench.leading.answer(LeadRequest(1, "n1", "job", 5), True, 0, 40.0).quorum
    bench.leading.keep(41.0)
    assert bench.leading.may_give_up("n0", 41.0)
    assert bench.claimed == [(4, 5)]
    bench.leading.answer(LeadRequest(0, "n0", "job", 4), True, 0, 41.0)
    assert not bench.leading.answer(LeadRequest(1, "n1", "job", 5), True, 0, 41.0).quorum


def test_a_machine_that_asks_where_to_join_takes_no_claim_from_the_half_that_leads_and_finds_it() -> None:
    bench = half_of_two(may_claim=True)
    for now_s in (41.0, 41.3, 41.6):
        bench.job.nodes["n1"].heard_s = now_s
        joins = bench.leading.answer(LeadRequest(0), True, 0, now_s)
        assert (joins.quorum, joins.place) == (True, "n0-2")
    assert bench.leading.answer(LeadRequest(1, "n1", "job", 5), True, 0, 42.0).quorum
    assert bench.claimed == [(4, 5)]


def test_and_stands_down_where_another_one_was_the_first() -> None:
    bench = half_of_two(may_claim=False)
    assert "another one leads" in bench.leading.stood_down
    assert not bench.leading.answer(LeadRequest(1, "n1", "job", 4), True, 0, 40.0).quorum


def test_the_lease_is_told_to_whoever_asks() -> None:
    bench = Bench(lease_s=45.0)
    bench.attach(0, 1, 2)
    assert bench.leading.answer(LeadRequest(1, "n1"), True, 0, 0.0).lease_s == 45.0


def test_fewer_than_half_of_the_machines_give_nobody_up() -> None:
    bench = Bench()
    bench.attach(0, 1, 2)
    bench.job.nodes["n2"].away_since_s = 0.0
    bench.job.nodes["n0"].away_since_s = 0.0
    assert not bench.leading.may_give_up("n2", 5.0)
    (event,) = bench.outbox.take()[1]
    assert "1 of 3 machines is there" in event.fields_json
    assert not bench.leading.answer(LeadRequest(1, "n1"), True, 0, 5.0).quorum


def test_a_machine_that_is_silent_counts_as_little_as_one_that_is_away() -> None:
    bench = Bench()
    bench.attach(0, 1, 2)
    bench.job.nodes["n1"].heard_s = bench.job.nodes["n0"].heard_s = 20.0
    assert not bench.leading.may_give_up("n2", 20.0)
    bench.follows(0)
    assert bench.leading.may_give_up("n2", 20.0)
    bench.job.nodes["n0"].heard_s = 5.0
    assert not bench.leading.may_give_up("n2", 20.0)


def test_a_machine_is_given_up_once_most_of_the_others_follow_an_epoch_that_it_does_not_know_of() -> None:
    bench = Bench()
    bench.attach(0, 1, 2)
    bench.follows(0)
    bench.follows(2)
    bench.job.nodes["n2"].away_since_s = 0.0
    bench.followers()
    assert not bench.leading.may_give_up("n2", 3.0)
    assert (bench.leading.epoch, sorted(bench.followers())) == (7, ["n0", "n2"])
    assert not bench.leading.may_give_up("n2", 3.1), "n0 was heard a moment ago, and may be cut off as well"
    assert bench.leading.answer(LeadRequest(2, "n2", "job", 4), True, 0, 3.2).epoch == 0, "it is told nothing"
    bench.follows(0)
    assert bench.leading.may_give_up("n2", 3.3)
    assert bench.leading.epoch == 7


def test_the_machine_that_leads_hears_of_an_epoch_once_enough_others_follow_it() -> None:
    """It may be the one that is cut off, and nobody is to stand down for an epoch that nobody has followed."""
    bench = Bench()
    bench.attach(0, 1, 2)
    bench.job.nodes["n2"].away_since_s = 0.0
    assert not bench.leading.may_give_up("n2", 3.0)
    bench.followers()
    assert bench.leading.answer(LeadRequest(1, "n1", "job", 4), True, 0, 3.1).epoch == 4
    bench.attach(1, epoch=4)
    assert [order.epoch for node, order in bench.outbox.take()[0] if isinstance(order, Follow)] == [4]
    bench.follows(0)
    assert bench.leading.may_give_up("n2", 3.3)
    assert bench.followers() == ["n1"]
    assert bench.leading.answer(LeadRequest(1, "n1", "job", 4), True, 0, 3.4).epoch == 7


def test_of_two_that_fall_silent_one_after_the_other_neither_is_given_up() -> None:
    bench = Bench()
    bench.attach(0, 1, 2)
    bench.job.nodes["n1"].heard_s, bench.job.nodes["n0"].heard_s, bench.job.nodes["n2"].heard_s = 20.0, 13.5, 12.0
    assert not bench.leading.may_give_up("n2", 20.0)
    bench.job.nodes["n1"].heard_s = 21.0
    assert not bench.leading.may_give_up("n0", 21.0)
    assert not bench.leading.may_give_up("n2", 21.0)
    assert not bench.leading.answer(LeadRequest(1, "n1", "job"), True, 0, 21.0).quorum
    assert bench.leading.members == {"n0", "n1", "n2"}


def test_a_machine_that_is_heard_again_is_not_given_up_by_what_was_agreed_before() -> None:
    bench = Bench()
    bench.attach(0, 1, 2)
    bench.job.nodes["n2"].away_since_s = 0.0
    assert not bench.leading.may_give_up("n2", 3.0)
    bench.follows(0)
    bench.attach(2, now_s=3.5)
    assert bench.leading.answer(LeadRequest(2, "n2", "job", 4), True, 0, 3.6).epoch == 7
    bench.job.nodes["n2"].away_since_s = 4.0
    assert not bench.leading.may_give_up("n2", 6.0)
    assert bench.leading.epoch == 10


def test_one_that_asked_for_an_epoch_that_nobody_followed_stands_down_before_whoever_leads_by_an_older_one() -> None:
    bench = Bench()
    bench.attach(0, 1, 2)
    bench.job.nodes["n2"].away_since_s = 0.0
    assert not bench.leading.may_give_up("n2", 3.0)
    assert bench.leading.answer(LeadRequest(0, "n0", "job", 4), True, 0, 3.5).follows == 4
    bench.leading.answer(LeadRequest(0, "n0", "job", 5), True, 0, 3.6)
    assert "follows a controller that began later" in bench.leading.stood_down


def test_a_machine_that_was_told_of_an_epoch_that_nobody_leads_by_is_followed_by_a_newer_one() -> None:
    """The leader before was cut off with it, and had asked for that epoch: too few were there to follow it."""
    bench = taking_over()
    bench.attach(1, 2)
    bench.leading.tick(0.0)
    bench.follows(2)
    bench.followers()
    reply = bench.leading.answer(LeadRequest(0, "n0", "job", 8), True, 0, 1.0)
    assert (bench.leading.stood_down, bench.leading.epoch, reply.epoch, reply.quorum) == ("", 10, 10, True)
    assert bench.followers() == ["n2"], "its own machine hears of it once most others follow it"
    bench.attach(0, now_s=1.1, job="job", epoch=8)
    assert bench.leading.stood_down == ""
    assert not bench.leading.is_followed(1.2)
    bench.follows(2)
    assert bench.leading.is_followed(1.3)


def test_where_too_few_others_follow_it_it_stands_down_before_that_machine() -> None:
    bench = taking_over()
    bench.attach(1, 2)
    bench.leading.tick(0.0)
    bench.leading.answer(LeadRequest(0, "n0", "job", 8), True, 0, 1.0)
    assert "follows a controller that began later" in bench.leading.stood_down, "n2 has not said that it follows"
    silent = taking_over()
    silent.attach(1, 2)
    silent.leading.tick(0.0)
    silent.follows(2)
    silent.job.nodes["n1"].heard_s = 20.0
    silent.leading.answer(LeadRequest(0, "n0", "job", 8), True, 0, 20.0)
    assert "follows a controller that began later" in silent.leading.stood_down, "n2 may follow that one by now"


def test_one_that_takes_over_gives_nobody_up_before_enough_machines_know_of_it() -> None:
    bench = taking_over()
    bench.attach(1, 2)
    bench.leading.tick(0.0)
    assert bench.leading.is_led
    assert not bench.leading.is_followed(1.0)
    bench.follows(2)
    assert bench.leading.is_followed(1.0)


def test_whoever_was_given_up_is_no_member_any_more() -> None:
    bench = Bench()
    bench.attach(0, 1, 2)
    bench.job.nodes["n2"].lost = "silent"
    assert bench.leading.members == {"n0", "n1"}
    told = bench.leading.answer(LeadRequest(1, "n1", "job", 4), True, 0, 0.0).members
    assert [m.node for m in told] == ["n0", "n1"], "who takes over asks nobody who is gone, and waits for nobody"
    assert bench.leading.may_give_up("n0", 1.0), "without a shared folder, and it leads"


@pytest.mark.parametrize(("job", "epoch", "word"), [("job", 5, "began later"), ("other", 1, "has begun already")])
def test_an_agent_that_follows_another_one_makes_it_stand_down(job: str, epoch: int, word: str) -> None:
    bench = Bench()
    bench.attach(0, job=job, epoch=epoch)
    assert word in bench.leading.stood_down
    assert bench.followers() == []
    asked = Bench()
    asked.leading.answer(LeadRequest(0, "n0", job, epoch), False, 0, 0.0)
    assert word in asked.leading.stood_down


def test_a_machine_that_comes_back_gets_a_name_that_none_has_had() -> None:
    bench = Bench(nodes=("n0", "n1", "n2", "n2-2"))
    bench.attach(0, 1)
    assert bench.leading.answer(LeadRequest(2), True, 0, 0.0).place == "n2-3"
    assert bench.leading.answer(LeadRequest(2), False, 0, 0.0).place == "n2"
    refused = bench.leading.answer(LeadRequest(0), True, 0, 0.0)
    assert (refused.place, refused.refused) == ("", "machine 0 is there already")


def test_on_one_machine_or_in_pods_all_of_this_is_nobodys_question() -> None:
    bench = Bench(epoch=0)
    bench.attach(0)
    assert bench.leading.is_led
    assert bench.leading.may_give_up("n0", 100.0)
    assert bench.leading.answer(LeadRequest(0, "n0", "x", 9), True, 0, 0.0).epoch == 0
    assert bench.followers() == []
