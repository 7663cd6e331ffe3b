"""All jobs of a cluster, as the controller's feed tells of them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from support import told_runs as t

from torchrelay.dashboard.cluster import jobs as module
from torchrelay.dashboard.cluster.asks import NOBODY, ControllerAsks
from torchrelay.dashboard.cluster.jobs import ClusterJobs
from torchrelay.protocol import events as e
from torchrelay.protocol.kube import job_feed as f
from torchrelay.protocol.messages import JobEvent

LEADS, WAITS = f.FeedLeader("c-1", "c-1"), f.FeedLeader("c-2", "c-1")
NOW_S = t.BEGAN_S + 200
DAY_S = 86_400.0


class Cluster:
    """A dashboard that is told what a test says, at a time that the test sets."""

    def __init__(self, ttl_s: float = DAY_S, asks: ControllerAsks | None = None) -> None:
        self.now_s = NOW_S
        self.jobs = ClusterJobs(ttl_s, lambda: self.now_s, asks=asks)
        self.begin()

    def begin(self) -> None:
        """A feed."""
        self.jobs.connected()
        self.jobs.take(LEADS)

    def see(self, job: str = "llama", lineage: str = "a", taken_over: bool = False) -> None:
        self.jobs.take(f.JobSeen("team", job, lineage, "PyTorchJob/llama", taken_over))

    def tell(self, *told: t.Told, job: str = "llama") -> None:
        for time_s, what in told:
            self.jobs.take(f.JobTold("team", job, e.to_job_event(what, time_s)))

    def cards(self) -> dict[str, dict[str, Any]]:
        self.jobs.hub._listed = None  # it is made once a second
        return {card["run"]: card for card in json.loads(self.jobs.hub.listed()["runs"])}

    def section(self, name: str, run_id: str = "team.llama") -> Any:
        self.jobs.hub._made.clear()
        return json.loads(self.jobs.hub.sections(run_id)[name])


def test_a_job_is_called_by_its_names_and_its_commands_are_kubectls() -> None:
    c = Cluster()
    c.see()
    gone = e.Protection("unprotected", "no spare is ready")
    c.tell(*t.begins(run_id="llama-3f9a1c"), (t.BEGAN_S + 30, gone))
    card = c.cards()["team.llama"]
    assert (card["title"], card["command"], card["ranks"]) == ("job team/llama", "PyTorchJob/llama", 4)
    (todo,) = c.section("job")["to_do"]
    assert todo["command"] == "kubectl torchrelay status llama -n team"


def test_what_a_job_has_put_aside_has_no_command_and_what_people_have_barred_does() -> None:
    c = Cluster()
    c.see()
    c.tell(*t.small_run())
    c.jobs.take(f.Barred((f.BarredSubject("q-1", "gpu-7", "", "the fan is loud"),)))
    own, barred = c.section("devices")["quarantine"]
    assert (own["subject"], own["command"]) == (t.GPU, "")
    assert (barred["subject"], barred["reason"]) == ("gpu-7", "the fan is loud")
    assert barred["command"] == "kubectl torchrelay quarantine clear q-1"
    c.jobs.take(f.Barred((f.BarredSubject("q-2", "n0", t.GPU, "a person, too"),)))
    assert c.section("devices")["quarantine"][0]["command"] == "kubectl torchrelay quarantine clear q-2"
    assert "This job uses it no more" not in str(c.section("job")["to_do"])
    c.jobs.take(f.Barred(()))
    assert "This job uses it no more" in str(c.section("job")["to_do"])


def test_a_node_that_a_person_has_barred_is_told_once_and_by_its_name() -> None:
    c = Cluster()
    c.see()
    c.tell(*t.begins(2, ("llama-0:0a1b", "llama-1:0c1d")))
    c.jobs.take(f.JobPlaces("team", "llama", {"llama-1:0c1d": "gpu-7"}))
    c.jobs.take(f.Barred((f.BarredSubject("gpu-7", "gpu-7", "", "the fan is loud"),)))
    verdict = e.HealthVerdict(
        action="migrate",
        rule="node-quarantine",
        node="llama-1:0c1d",
        subject="quarantine",
        ranks=(1,),
        reason="quarantine (the fan is loud)",
        outcome="done",
        quarantine="node",
    )
    c.tell((t.BEGAN_S + 50, verdict))
    (aside,) = c.section("devices")["quarantine"]
    assert (aside["subject"], aside["rule"]) == ("gpu-7", "node-quarantine")
    (todo,) = c.section("job")["to_do"]
    assert todo == {
        "text": "Look at gpu-7. Clear it when it is well.",
        "command": "kubectl torchrelay quarantine clear gpu-7",
    }


def test_ranks_are_by_the_nodes_of_their_pods_where_these_are_known() -> None:
    c = Cluster()
    c.see()
    pods = ("llama-0:0a1b", "llama-1:0c1d")
    c.tell(*t.begins(2, pods))
    assert [n["name"] for n in c.section("ranks")["nodes"]] == ["llama-0", "llama-1"]
    c.jobs.take(f.JobPlaces("team", "llama", {pods[0]: "gpu-1"}))
    assert [n["name"] for n in c.section("ranks")["nodes"]] == ["gpu-1", "llama-1"]


def test_a_feed_that_begins_again_adds_nothing_twice() -> None:
    c = Cluster()
    told = [*t.begins(), *t.kill(60)]
    c.see()
    c.tell(*told)
    before = c.section("job")
    c.begin()
    c.see()
    c.tell(*told)
    assert c.section("job") == before
    c.tell(*t.kill(90, "m2"))
    assert c.section("job")["migrations"] == 2


def test_another_job_of_the_name_begins_anew_and_one_that_begins_again_goes_on() -> None:
    c = Cluster()
    c.see()
    c.tell(*t.begins(), *t.kill(60))
    c.see()
    assert c.section("job")["migrations"] == 1
    c.see(lineage="b")
    c.tell(*t.begins())
    assert c.section("job")["migrations"] == 0
    assert len(c.cards()) == 1


def test_a_job_that_is_gone_stays_for_its_time() -> None:
    c = Cluster()
    c.see()
    c.tell(*t.begins())
    c.jobs.take(f.JobGone("team", "llama"))
    assert c.section("job")["headline"]["text"] == "No news of this job"
    assert "none of its pods is there" in c.section("job")["headline"]["detail"]
    c.now_s += DAY_S - 1
    c.jobs.sweep()
    assert c.section("job")["began"] == "3 min 20 s"  # as it was when it went
    c.now_s += 1
    c.jobs.sweep()
    assert c.cards() == {}
    with pytest.raises(KeyError):
        c.section("job")


def test_below_0_nothing_is_dropped_for_its_age() -> None:
    c = Cluster(-1.0)
    c.see()
    c.jobs.take(f.JobGone("team", "llama"))
    c.now_s += 100 * DAY_S
    c.jobs.sweep()
    assert len(c.cards()) == 1


def test_a_job_that_went_while_the_feed_was_cut_off_is_gone() -> None:
    c = Cluster()
    c.see("here")
    c.see("gone")
    c.begin()
    c.see("here")
    assert c.section("job", "team.gone")["headline"]["text"] != "No news of this job"  # it may yet come
    c.jobs.take(LEADS)
    assert c.section("job", "team.gone")["headline"]["text"] == "No news of this job"
    assert c.section("job", "team.here")["headline"]["text"] != "No news of this job"


def test_a_job_that_was_taken_over_says_since_when_times_count() -> None:
    c = Cluster()
    c.see(taken_over=True)
    note = c.section("job")["note"]
    assert note.startswith("This controller took the job over at ")
    assert note.endswith("kubectl torchrelay history llama -n team")
    c.see("young")
    assert c.section("job", "team.young")["note"] == ""


def test_a_replica_that_waits_says_who_leads_and_a_cut_feed_is_said() -> None:
    c = Cluster()
    assert c.jobs.about().nothing.startswith("No job trains")
    assert "c-1 leads" in c.jobs.about().note
    c.jobs.take(WAITS)
    assert c.jobs.about().note == (
        "This replica (c-2) waits, and knows of no job: c-1 leads. Begin again: kubectl torchrelay dashboard"
    )
    c.jobs.problem = "the controller beside this dashboard has ended"
    assert c.jobs.about().note == "The controller beside this dashboard has ended."
    c.see()
    assert c.section("job")["headline"]["detail"] == "The controller beside this dashboard has ended."


def test_without_tokens_nothing_can_be_asked_of_it() -> None:
    c = Cluster()
    c.see()
    source = c.jobs.hub.find("team.llama")
    assert source is not None
    assert not asyncio.run(source.migrate(0, "so", "alice")).done
    assert not asyncio.run(source.clear("gpu", "so", False, "alice")).done
    assert c.section("job")["actions"] is False


def test_with_tokens_a_job_can_be_asked_for_something_until_it_is_over_or_nobody_looks_after_it() -> None:
    c = Cluster(asks=ControllerAsks())
    c.see()
    c.tell(*t.small_run())
    assert c.section("job")["actions"] is True
    source = c.jobs.hub.find("team.llama")
    assert source is not None
    assert asyncio.run(source.migrate(0, "so", "alice")).message == NOBODY  # the feed of this test has no other end
    c.jobs.take(f.JobGone("team", "llama"))
    assert c.section("job")["actions"] is False
    assert asyncio.run(source.migrate(0, "so", "alice")).message == module.OVER
    assert asyncio.run(source.clear("gpu", "so", False, "alice")).message == module.OVER


def test_events_of_another_version_are_left_out() -> None:
    c = Cluster()
    c.see()
    c.jobs.take(f.JobTold("team", "llama", JobEvent(t.BEGAN_S, "unheard_of", "{}")))
    c.jobs.take(f.JobTold("team", "other", e.to_job_event(e.SparesChanged(1, 1, 0, ""), t.BEGAN_S)))
    assert c.section("job")["world_size"] == 0


def test_there_are_so_many_jobs_at_most_and_those_that_are_gone_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "JOBS_KEPT", 3)
    c = Cluster()
    for n in range(3):
        c.see(f"j{n}")
    c.jobs.take(f.JobGone("team", "j1"))
    c.see("j3")
    assert set(c.cards()) == {"team.j0", "team.j2", "team.j3"}
    c.see("j4")
    assert set(c.cards()) == {"team.j2", "team.j3", "team.j4"}


def test_what_is_kept_of_all_jobs_together_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVENTS_KEPT", 1000)
    monkeypatch.setattr(module, "COUNT_EVERY", 100)
    c = Cluster()
    for name in ("long", "short", "gone"):
        c.see(name)
        c.tell(*t.begins(), *t.kill(50), job=name)
    c.jobs.take(f.JobGone("team", "gone"))
    for n in range(300):
        c.tell(*t.kill(60.0 + 2 * n, f"m{n + 2}"), job="long")
    assert set(c.cards()) == {"team.long", "team.short"}
    assert c.section("job", "team.long")["migrations"] == 301
    assert len(c.section("migrations", "team.short")) == 1
    assert sum(j.record.kept for j in c.jobs._jobs.values()) <= 1000 + 2 * 100
