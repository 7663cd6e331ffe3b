"""What is kept of a cluster's jobs outlives the controller that told it, and never takes more room than it may."""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import told_runs as t

from torchrelay.dashboard.cluster import kept as module
from torchrelay.dashboard.cluster.jobs import PAST_SHOWN, ClusterJobs
from torchrelay.dashboard.cluster.kept import KeptJobs
from torchrelay.protocol import events as e
from torchrelay.protocol.kube import job_feed as f

LEADS, WAITS = f.FeedLeader("c-1", "c-1"), f.FeedLeader("c-2", "c-1")
DAY_S = 86_400.0
ROOM_BYTES = 64 << 20


OPEN: list[KeptJobs] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """What a test has begun to write."""
    yield
    while OPEN:
        OPEN.pop().close()


class Cluster:
    """A dashboard beside a new controller, with the folder of the one before."""

    def __init__(self, folder: Path, most_bytes: int = ROOM_BYTES, leads: bool = True) -> None:
        self.now_s = t.BEGAN_S + 200
        OPEN.append(KeptJobs(folder, most_bytes))
        self.jobs = ClusterJobs(DAY_S, lambda: self.now_s, OPEN[-1])
        self.jobs.connected()
        self.jobs.take(LEADS if leads else WAITS)
        self.recall()

    def recall(self) -> None:
        for job in self.jobs.to_recall():
            self.jobs.recall(job, self.jobs.read(job))

    def see(self, job: str = "llama", lineage: str = "a") -> None:
        self.jobs.take(f.JobSeen("team", job, lineage, "PyTorchJob/llama", False))

    def tell(self, *told: t.Told, job: str = "llama") -> None:
        for time_s, what in told:
            self.jobs.take(f.JobTold("team", job, e.to_job_event(what, time_s)))

    def finish(self, job: str) -> None:
        self.now_s += 1
        self.see(job)
        self.tell(*t.begins(), ended(120), job=job)
        self.jobs.take(f.JobGone("team", job))

    def cards(self) -> list[dict[str, Any]]:
        self.jobs.hub._listed = None  # it is made once a second
        found: list[dict[str, Any]] = json.loads(self.jobs.hub.listed()["runs"])
        return found

    def section(self, name: str, run_id: str) -> Any:
        self.jobs.hub._made.clear()
        return json.loads(self.jobs.hub.sections(run_id)[name])


def ended(after_s: float, reason: str = "all ranks are done") -> t.Told:
    return t.BEGAN_S + after_s, e.JobFinished(0, reason)


def names(folder: Path) -> list[str]:
    return sorted(path.name.split(".")[1] for path in folder.iterdir())


def taken_bytes(folder: Path) -> int:
    """What the volume has less for it, where a file takes whole blocks."""
    return sum(-(-path.stat().st_size // 4096) * 4096 for path in folder.rglob("*"))


def size_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def test_a_job_that_is_over_is_told_by_the_next_controllers_dashboard_as_by_the_one_that_saw_it(tmp_path: Path) -> None:
    before = Cluster(tmp_path)
    before.see()
    before.tell(*t.begins(), *t.kill(60), ended(120))
    told = {name: before.section(name, "team.llama") for name in ("migrations", "chart")}
    (card,) = Cluster(tmp_path).cards()
    after = Cluster(tmp_path)
    assert (card["job"], card["over"], card["when"][:6]) == ("team/llama", True, "began ")
    assert card["headline"] == "Finished"
    assert {name: after.section(name, card["run"]) for name in told} == told
    assert len(told["migrations"]) == 1


def test_one_whose_end_nobody_told_says_so(tmp_path: Path) -> None:
    before = Cluster(tmp_path)
    before.see()
    before.tell(*t.begins())
    after = Cluster(tmp_path)
    (card,) = after.cards()
    assert card["over"]
    assert "another controller went on, or none led" in str(after.section("job", card["run"])["headline"])


def test_a_dashboard_that_begins_again_beside_the_same_controller_goes_on_and_writes_nothing_twice(
    tmp_path: Path,
) -> None:
    told = [*t.begins(), *t.kill(60)]
    first = Cluster(tmp_path)
    first.see()
    first.tell(*told)
    kept_bytes = size_bytes(tmp_path)
    again = Cluster(tmp_path)
    again.see()
    again.tell(*told)  # a feed that begins tells what is kept
    assert size_bytes(tmp_path) == kept_bytes
    again.tell(*t.kill(90, "m2"))
    (card,) = again.cards()
    assert (card["run"], card["over"]) == ("team.llama", False)
    assert len(again.section("migrations", "team.llama")) == 2
    assert size_bytes(tmp_path) > kept_bytes


def test_an_earlier_job_of_the_name_and_one_whose_time_is_over_stay(tmp_path: Path) -> None:
    c = Cluster(tmp_path)
    c.see()
    c.tell(*t.begins(), *t.kill(60), ended(120))
    c.see(lineage="b")
    c.tell(*t.begins())
    assert [(card["run"] == "team.llama", card["over"]) for card in c.cards()] == [(True, False), (False, True)]
    c.jobs.take(f.JobGone("team", "llama"))
    c.now_s += DAY_S
    c.jobs.sweep()
    assert [card["over"] for card in c.cards()] == [True, True]
    assert [card["job"] for card in Cluster(tmp_path).cards()] == ["team/llama"] * 2


def test_who_waits_reads_nothing_until_it_leads(tmp_path: Path) -> None:
    before = Cluster(tmp_path)
    before.see()
    before.tell(*t.begins(), ended(120))
    waiting = Cluster(tmp_path, leads=False)
    assert waiting.cards() == []
    waiting.jobs.take(f.FeedLeader("c-2", "c-2"))
    waiting.recall()
    assert len(waiting.cards()) == 1
    assert waiting.jobs.to_recall() == []


def test_the_newest_are_shown_and_all_are_kept(tmp_path: Path) -> None:
    c = Cluster(tmp_path)
    for number in range(PAST_SHOWN + 3):
        c.finish(f"j{number}")
    shown = {card["job"] for card in Cluster(tmp_path).cards()}
    assert shown == {f"team/j{number}" for number in range(3, PAST_SHOWN + 3)}
    assert len(list(tmp_path.iterdir())) == PAST_SHOWN + 3


def test_what_is_kept_is_bounded_and_the_oldest_that_are_over_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "JOB_BYTES", 16 << 10)
    most_bytes = 64 << 10
    c = Cluster(tmp_path, most_bytes)
    logs = [(t.BEGAN_S + n, e.Log("warning", "x" * 200)) for n in range(100)]
    for number in range(12):
        c.now_s += 1
        c.see(f"j{number}")
        c.tell(*logs, ended(200), job=f"j{number}")
        c.jobs.take(f.JobGone("team", f"j{number}"))
        assert taken_bytes(tmp_path) <= most_bytes
    left = {path.name.split(".")[1] for path in tmp_path.iterdir()}
    assert "j11" in left
    assert "j0" not in left
    assert 2 <= len(left) < 6


def test_more_jobs_than_have_room_are_followed_and_not_kept_which_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "JOB_BYTES", 16 << 10)
    c = Cluster(tmp_path, 48_000)
    c.finish("before")
    with caplog.at_level(logging.WARNING):
        for number in range(4):
            c.see(f"j{number}")
            c.tell(*t.begins(), job=f"j{number}")
    assert names(tmp_path) == ["before", "j0", "j1"]  # what was kept does not go for one that cannot be
    assert len(c.cards()) == 5
    assert [r.getMessage() for r in caplog.records] == [
        "no more jobs are kept at once than 2: dashboard.history.sizeMiB is the bound"
    ]


def test_a_folder_that_cannot_be_written_costs_the_history_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "taken").write_text("a file")
    with caplog.at_level(logging.WARNING):
        c = Cluster(tmp_path / "taken")
        for job in ("a", "b"):
            c.see(job)
            c.tell(*t.begins(), job=job)
    assert len(c.cards()) == 2
    (said,) = caplog.records
    assert "what happens to jobs is not kept in" in said.getMessage()


def test_what_is_no_whole_job_is_left_out(tmp_path: Path) -> None:
    before = Cluster(tmp_path)
    before.see()
    before.tell(*t.begins(), ended(120))
    (kept,) = tmp_path.iterdir()
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "job.json").write_text("{")
    (kept / "events.jsonl").write_text("no events")
    (card,) = Cluster(tmp_path).cards()
    assert card["steps"] == 0


def test_many_small_jobs_are_bounded_by_their_blocks_and_by_their_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "JOB_BYTES", 16 << 10)
    small = Cluster(tmp_path / "small", 64 << 10)
    for number in range(9):
        small.finish(f"j{number}")
        assert taken_bytes(tmp_path / "small") <= 64 << 10
    monkeypatch.setattr(module, "MOST_JOBS", 3)
    few = Cluster(tmp_path / "few")
    for number in range(9):
        few.finish(f"j{number}")
    assert names(tmp_path / "few") == ["j6", "j7", "j8"]


def test_the_folder_is_looked_through_once_while_this_dashboard_alone_writes_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[KeptJobs] = []
    look = KeptJobs.list_again
    monkeypatch.setattr(KeptJobs, "list_again", lambda kept: (looked.append(kept), look(kept)))
    c = Cluster(tmp_path)
    for number in range(5):
        c.finish(f"j{number}")
    assert len(looked) == 1
    c.jobs.take(WAITS)
    Cluster(tmp_path).finish("of-another-leader")
    looked.clear()
    c.jobs.take(LEADS)
    assert c.jobs.is_list_due
    c.jobs.list_kept()
    assert not c.jobs.is_list_due
    assert "of-another-leader" in {job.job for job in OPEN[0].newest()}
    assert len(looked) == 1


def test_a_full_volume_leaves_no_job_without_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Cluster(tmp_path).finish("llama")
    (head,) = tmp_path.glob("*/job.json")
    before = head.stat()

    def full(path: Path, *_: object, **__: object) -> int:
        path.write_bytes(b"{")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        again = Cluster(tmp_path)
        again.see("llama")
        again.see("other")
        kept_bytes = size_bytes(head.parent)
        again.tell(*t.kill(150), job="llama")
    assert size_bytes(head.parent) > kept_bytes
    after = head.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert len(list(tmp_path.glob("*/job.json"))) == 1
    assert len(again.cards()) == 2
    Cluster(tmp_path).finish("other")
    assert {card["job"] for card in Cluster(tmp_path).cards()} == {"team/llama", "team/other"}


def test_what_does_not_say_its_job_goes_first_and_what_is_not_ours_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_JOBS", 2)
    for name in ("team.lost.0123abcd", "lost+found"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "job.json").write_text("[" * 100_000)
    c = Cluster(tmp_path)
    c.finish("a")
    c.finish("b")
    assert {path.name.split(".")[-2] for path in tmp_path.iterdir() if "." in path.name} == {"a", "b"}
    assert (tmp_path / "lost+found").exists()


def test_a_line_that_was_cut_off_costs_that_line_alone(tmp_path: Path) -> None:
    before = Cluster(tmp_path)
    before.see()
    before.tell(*t.begins())
    (events,) = tmp_path.glob("*/events.jsonl")
    with open(events, "a") as file:
        file.write('{"time_s": 17')
    again = Cluster(tmp_path)
    again.see()
    again.tell(ended(120))
    (card,) = Cluster(tmp_path).cards()
    assert card["headline"] == "Finished"


def test_a_job_that_the_controller_left_out_gives_its_place_back_and_is_written_again_when_it_is_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "JOB_BYTES", ROOM_BYTES)
    c = Cluster(tmp_path)
    c.see("a")
    c.jobs.connected()
    for _ in range(2):
        c.jobs.take(LEADS)
    c.see("b")
    c.tell(*t.begins(), job="b")
    assert names(tmp_path) == ["b"]  # there is room for one
    c.jobs.take(f.JobGone("team", "b"))
    c.see("b")
    (events,) = tmp_path.glob("*/events.jsonl")
    size = events.stat().st_size
    c.tell(*t.kill(60), job="b")
    assert events.stat().st_size > size


def test_a_folder_that_goes_while_it_is_looked_at_stops_nothing(tmp_path: Path) -> None:
    assert module._size_bytes(tmp_path / "gone") == module.BLOCK_BYTES
