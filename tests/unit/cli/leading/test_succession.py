"""Whom a machine follows whose controller is gone, and when it leads itself."""

from __future__ import annotations

from dataclasses import replace

from torchrelay.cli.leading.succession import AGAIN_S, AWAY_S, TURN_S, Action, View, next_step
from torchrelay.protocol.messages import LeadReply, Member

MEMBERS = tuple(Member(f"n{rank}", rank, f"node{rank}:29476") for rank in range(3))
KNOWN = LeadReply(3, "job", "n0", MEMBERS, begun=True, quorum=True, follows=3)
SECOND = View("n1", 1, 3, KNOWN, AWAY_S)


def test_the_first_of_those_that_are_left_leads_and_the_next_one_lets_it() -> None:
    assert next_step(SECOND).action is Action.LEAD
    third = replace(SECOND, node="n2", node_rank=2)
    assert next_step(third).action is Action.WAIT
    assert next_step(replace(third, silent_s=AWAY_S + TURN_S)).action is Action.LEAD


def test_a_controller_that_is_away_for_a_moment_is_waited_for() -> None:
    assert next_step(replace(SECOND, silent_s=AWAY_S - 0.1)).action is Action.WAIT


def test_each_one_leads_in_an_epoch_of_its_own() -> None:
    assert next_step(SECOND).epoch == 4
    assert next_step(replace(SECOND, node="n2", node_rank=2, silent_s=60)).epoch == 5
    assert next_step(replace(SECOND, tried=4)).epoch == 7


def test_whoever_leads_with_enough_machines_is_followed_before_anybody_who_begins_to() -> None:
    leads, begins = replace(KNOWN, epoch=5, node="n2"), replace(KNOWN, epoch=7, node="n1", quorum=False)
    view = replace(SECOND, node="n0", node_rank=0, answers=(("node1:1", begins), ("node2:1", leads)))
    step = next_step(view)
    assert (step.action, step.address) == (Action.FOLLOW, "node2:1")
    step = next_step(replace(view, answers=(("node1:1", begins),)))
    assert (step.action, step.address) == (Action.FOLLOW, "node1:1")


def test_whoever_is_older_or_of_another_job_is_not_followed() -> None:
    older, other = replace(KNOWN, epoch=2), replace(KNOWN, epoch=9, job="another")
    step = next_step(replace(SECOND, silent_s=0, answers=(("a:1", older), ("b:1", other))))
    assert step.action is Action.WAIT


def test_whoever_does_not_know_of_the_newest_epoch_that_led_is_not_followed_into_a_later_one() -> None:
    later = replace(KNOWN, epoch=9, quorum=False, follows=2)
    assert next_step(replace(SECOND, silent_s=3.0, answers=(("c:1", later),))).action is Action.WAIT
    assert next_step(replace(SECOND, answers=(("c:1", replace(later, follows=3)),))).action is Action.FOLLOW


def test_a_machine_that_begins_to_lead_gives_way_to_a_later_epoch_alone() -> None:
    holds = replace(SECOND, holds=True, epoch=4)
    assert next_step(holds).action is Action.WAIT
    rival = replace(KNOWN, epoch=5, quorum=False)
    assert next_step(replace(holds, answers=(("c:1", rival),))).action is Action.FOLLOW
    assert next_step(replace(holds, epoch=7, answers=(("c:1", rival),))).action is Action.WAIT


def test_one_of_two_machines_leads_only_where_a_shared_folder_can_decide() -> None:
    two = replace(KNOWN, members=MEMBERS[:2])
    refused = next_step(replace(SECOND, nnodes=2, known=two))
    assert refused.action is Action.WAIT
    assert "--jit-dir that all machines share" in refused.reason
    assert next_step(replace(SECOND, nnodes=2, known=replace(two, shared=True))).action is Action.LEAD


LEASE = replace(SECOND, known=replace(KNOWN, lease_s=60.0), silent_s=60.0, tried_s=1.0)


def test_a_machine_that_hears_of_nobody_who_leads_ends_its_processes_when_its_lease_is_over() -> None:
    step = next_step(LEASE)
    assert step.action is Action.FENCE
    assert "for 60 s, and other machines may go on without this one" in step.reason
    assert next_step(replace(LEASE, silent_s=59.9)).action is not Action.FENCE


def test_so_does_the_one_that_led_and_has_too_few_machines() -> None:
    assert next_step(replace(LEASE, node="n0", node_rank=0, holds=True, epoch=3)).action is Action.FENCE
    assert next_step(replace(LEASE, node="n0", node_rank=0, holds=True, epoch=3, silent_s=59.0)).action is Action.WAIT


def test_one_that_finds_who_leads_follows_and_where_nobody_else_could_lead_nothing_is_ended() -> None:
    leads = replace(KNOWN, epoch=5, node="n2")
    assert next_step(replace(LEASE, answers=(("node2:1", leads),))).action is Action.FOLLOW
    assert next_step(replace(LEASE, barred="it is a check")).action is Action.WAIT
    assert next_step(replace(LEASE, known=replace(LEASE.known, begun=False))).action is not Action.FENCE
    assert next_step(replace(LEASE, known=replace(LEASE.known, lease_s=0.0))).action is not Action.FENCE


def test_a_machine_does_not_try_to_lead_again_at_once_nor_where_nobody_could_lead() -> None:
    assert next_step(replace(SECOND, tried_s=AGAIN_S - 1)).action is Action.WAIT
    barred = next_step(replace(SECOND, barred="it is a check"))
    assert (barred.action, "it is a check" in barred.reason) == (Action.WAIT, True)
