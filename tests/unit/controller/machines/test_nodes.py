"""A node is lost as a whole, and comes back or does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fake_job import FakeJob

from torchrelay.protocol import events
from torchrelay.protocol import messages as msg


@pytest.fixture
def job(tmp_path: Path) -> FakeJob:
    job = FakeJob(tmp_path, world_size=4, spares=2, nnodes=2)
    job.train()
    job.tick(1.0)
    for worker in job.ranks:
        job.say(worker, msg.JournalsCopied(job.sent(msg.CopyJournals)[worker].node, 5))
    return job


def lose(job: FakeJob, node: str, seconds: float = 10.0) -> None:
    """Nothing is heard of the node any more, and the others wait for it."""
    job.silent.add(node)
    for worker in job.ranks:
        if not worker.startswith(node):
            job.waiting.add(worker)
            job.still.add(worker)
    job.tick(seconds)


def test_each_rank_is_told_which_node_keeps_copies_of_its_journals(job: FakeJob) -> None:
    orders = job.sent(msg.CopyJournals)
    assert orders["n0.w0"] == msg.CopyJournals("n1", "10.0.0.2", 9100, b"n1")
    assert orders["n1.w1"] == msg.CopyJournals("n0", "10.0.0.1", 9100, b"n0")
    assert {(e.rank, e.node) for e in job.told(events.JournalsKept)} == {(0, "n1"), (1, "n1"), (2, "n0"), (3, "n0")}
    assert [e.all_ranks for e in job.told(events.JournalsKept)] == [False, False, False, True]


def test_the_ranks_of_a_lost_node_go_on_from_the_copies_on_another_one(job: FakeJob) -> None:
    lose(job, "n1")
    job.settle()
    (lost,) = job.told(events.NodeLost)
    assert (lost.node, lost.ranks, lost.spares) == ("n1", (2, 3), 0)
    assert job.core.job.holders == {0: "n0.w0", 1: "n0.w1", 2: "n0.s0", 3: "n0.s1"}
    asked = [(node, order.worker) for node, order in job.sent_to if isinstance(order, msg.FetchJournal)]
    assert set(asked) == {("n0", "n1.w0"), ("n0", "n1.w1")}
    assert job.sent(msg.Plan)["n0.s1"].journal == b"n1.w1@5"
    assert job.stop is None
    (finished,) = job.told(events.MigrationFinished)
    assert finished.downtime_s["detect"] >= 7.0


def test_nothing_more_is_asked_of_a_lost_node(job: FakeJob) -> None:
    lose(job, "n1")
    before = len(job.sent_to)
    job.settle()
    job.tick(5.0)
    assert [order for node, order in job.sent_to[before:] if node == "n1"] == []


def test_a_lost_node_that_is_back_has_its_workers_ended(job: FakeJob) -> None:
    lose(job, "n1")
    job.settle()
    assert job.core.take_hang_ups() == ["n1"]
    job.silent.clear()
    holders = dict(job.core.job.holders)
    job.attach("n1")
    (stop,) = [order for node, order in job.sent_to if node == "n1" and isinstance(order, msg.StopJob)]
    assert (stop.exit_code, stop.signal) == (1, 9)
    job.say("n1.w0", msg.Standing(9, 5, 5, "body", "", "10.0.0.2", 7000))
    job.die("n1.w1")
    job.tick(1.0)
    assert job.core.job.holders == holders
    assert len(job.told(events.MigrationFinished)) == 1


def test_a_node_that_is_silent_while_training_goes_on_is_left_alone(job: FakeJob) -> None:
    job.silent.add("n1")
    job.core.detach("n1", job.now_s)
    job.tick(200.0)
    assert job.stop is None
    assert job.told(events.NodeLost) == []
    assert [log.text for log in job.told(events.Log) if "training goes on" in log.text] == [
        "the agent of n1 is away, but training goes on"
    ]


def test_the_controller_does_not_blame_others_for_its_own_stall(job: FakeJob) -> None:
    for worker in job.ranks:
        job.waiting.add(worker)
        job.still.add(worker)
    job.now_s += 60.0
    job.core.tick(job.now_s)
    job.core.tick(job.now_s + 0.05)
    job._collect()
    assert job.told(events.NodeLost) == []


def test_a_journal_that_the_lost_node_still_owed_is_asked_for_elsewhere(job: FakeJob) -> None:
    job.silent.add("n1")
    job.core.receive("n1", msg.WorkerExited("n1.w0", 137, 9, False), job.now_s)
    job._collect()
    lose(job, "n1")
    job.settle()
    assert sorted(job.core.job.holders.values()) == ["n0.s0", "n0.s1", "n0.w0", "n0.w1"]


def test_a_copy_that_is_lost_is_begun_anew_after_a_while(job: FakeJob) -> None:
    before = len(job.orders)
    job.say("n0.w0", msg.JournalCopyLost("n1", "it takes nothing"))
    job.tick(5.0)
    assert [o for o in job.orders[before:] if isinstance(o, msg.ToWorker)] == []
    job.tick(10.0)
    (order,) = [o.order for o in job.orders[before:] if isinstance(o, msg.ToWorker)]
    assert order == msg.CopyJournals("n1", "10.0.0.2", 9100, b"n1")


def test_copies_that_fail_again_and_again_are_tried_ever_more_seldom(job: FakeJob) -> None:
    pauses = []
    for _ in range(9):
        before = len(job.orders)
        job.say("n0.w0", msg.JournalCopyLost("n1", "it does not answer"))
        while not [o for o in job.orders[before:] if isinstance(o, msg.ToWorker)]:
            job.now_s += 5.0
            job.core.nodes.assign_keepers(job.now_s)
            job._collect()
        pauses.append(job.told(events.Log)[-1].text.rpartition("in ")[2])
    assert pauses == ["10 s", "20 s", "40 s", "80 s", "160 s", "320 s", "640 s", "640 s", "640 s"]
    job.now_s += 2000.0
    job.say("n0.w0", msg.JournalCopyLost("n1", "it does not answer"))
    assert job.told(events.Log)[-1].text.endswith("tried again in 10 s")


def test_copies_that_a_dying_node_lost_go_to_the_next_one_as_soon_as_it_is_given_up(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, world_size=3, spares=1, nnodes=3)
    job.train()
    job.tick(1.0)
    for worker in job.ranks:
        job.say(worker, msg.JournalsCopied(job.sent(msg.CopyJournals)[worker].node, 5))
    assert job.sent(msg.CopyJournals)["n1.w0"].node == "n2"
    before = len(job.orders)
    job.say("n1.w0", msg.JournalCopyLost("n2", "connection reset"))
    job.silent.add("n2")
    job.core.nodes.gone("n2", "its last connection is closed", job.now_s)
    job._collect()
    orders = [o.order for o in job.orders[before:] if isinstance(o, msg.ToWorker) and o.worker == "n1.w0"]
    assert [o.node for o in orders if isinstance(o, msg.CopyJournals)] == ["n0"]


def test_copies_that_were_kept_where_no_process_lives_are_made_elsewhere_once_it_is_gone(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, world_size=3, spares=1, nnodes=3)
    job.attach("n3")
    job.train()
    job.tick(1.0)
    for worker in job.ranks:
        job.say(worker, msg.JournalsCopied(job.sent(msg.CopyJournals)[worker].node, 5))
    assert job.sent(msg.CopyJournals)["n2.w0"].node == "n3"
    job.core.lose("n3", "its pod is deleted", job.now_s)
    job._collect()
    assert job.sent(msg.CopyJournals)["n2.w0"].node == "n0"
    assert job.core.job.workers["n2.w0"].copied_to == ""
    assert job.told(events.NodeLost) == [], "nobody was lost with it"


def test_with_one_node_left_nobody_keeps_copies(job: FakeJob) -> None:
    lose(job, "n1")
    assert job.sent(msg.CopyJournals)["n0.w0"] == msg.CopyJournals("", "", 0, b"")


def test_a_journal_from_a_node_that_was_not_asked_is_refused(job: FakeJob) -> None:
    job.give(msg.JournalContent("n1.w0", {99: b"forged"}, {}, b""), "n0")
    assert 99 not in job.core.job.journal(2).boundaries
    assert any("which it was not asked for" in log.text for log in job.told(events.Log))


def test_what_a_node_keeps_is_kept_elsewhere_before_its_agent_ends(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, world_size=3, spares=1, nnodes=3)
    job.train()
    job.tick(1.0)
    for worker in job.ranks:
        job.say(worker, msg.JournalsCopied(job.sent(msg.CopyJournals)[worker].node, 5))
    assert job.sent(msg.CopyJournals)["n0.w0"].node == "n1"
    job.sent_to.clear()
    job.core.nodes.release("n1", "its rank has moved", job.now_s)
    job._collect()
    assert job.sent(msg.CopyJournals)["n0.w0"].node == "n2"
    assert isinstance(job.sent_to[-1][1], msg.StopJob)
    job.say("n0.w0", msg.JournalsCopied("n2", 6))
    job.tick(60.0)
    assert job.sent(msg.CopyJournals)["n0.w0"].node == "n2"


def test_a_rank_whose_journals_are_nowhere_uses_up_no_spares(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, world_size=4, spares=2, nnodes=2)
    job.without_journals = {"n1.w0", "n1.w1"}
    job.train()
    job.tick(1.0)
    lose(job, "n1")
    job.settle()
    assert job.sent(msg.Assign) == {}
    assert job.stop is not None
    assert any("nobody has copies" in d.text for d in job.told(events.Decision))


def test_copies_are_kept_on_another_machine_than_the_rank_s(tmp_path: Path) -> None:
    job = FakeJob(tmp_path, world_size=4, nnodes=4)
    job.core.job.machines = {"n0": "m0", "n1": "m0", "n2": "m1", "n3": "m1"}
    job.train()
    job.tick(1.0)
    keepers = {worker: order.node for worker, order in job.sent(msg.CopyJournals).items()}
    assert keepers == {"n0.w0": "n2", "n1.w0": "n3", "n2.w0": "n0", "n3.w0": "n1"}


def test_a_whole_copy_beside_its_rank_is_given_up_for_one_on_another_machine(tmp_path: Path) -> None:
    """Where the pods of the other machine came later, or their machine was not known yet."""
    job = FakeJob(tmp_path, world_size=3, nnodes=3, config={"adopted": True})
    job.core.job.machines.update(n0="m0", n1="m0", n2="m0")
    job.train()
    job.tick(1.0)
    before = job.sent(msg.CopyJournals)["n0.w0"].node
    assert before == "n1"
    job.say("n0.w0", msg.JournalsCopied(before, 5))
    job.core.job.machines["n2"] = "m1"
    job.tick(1.0)
    assert job.sent(msg.CopyJournals)["n0.w0"].node == "n2"
