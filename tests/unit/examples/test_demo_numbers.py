"""What the demo reads from its runs, and what it concludes from that."""

import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import demo

    yield demo
    for name in ("demo", "demo_runs", "demo_picture"):
        sys.modules.pop(name, None)


HEADER = "step,loss,mean_loss,lr,tokens,unix_time_s\n"
WEIGHTS = {0: "a" * 64, 1: "b" * 64, 2: "c" * 64}


def write_log(path: Path, steps_and_times: list[tuple[int, float]], change: str = "") -> None:
    lines = [f"{step},0.{step:03d}{change},0.{step:03d},0.1,100,{time_s}\n" for step, time_s in steps_and_times]
    path.write_text(HEADER + "".join(lines))


def make_run(demo, folder: Path, steps_and_times: list[tuple[int, float]], **more: object):
    from demo_runs import Run, read_rows

    write_log(folder / "loss.csv", steps_and_times)
    return Run("a run", folder, 1.0, read_rows(folder / "loss.csv"), dict(WEIGHTS), **more)


def migration(time_s: float, downtime_s: float) -> dict[str, object]:
    return {
        "name": "migration_finished",
        "outcome": "committed",
        "time_s": time_s,
        "downtime_s": {"detect": downtime_s / 2, "prepare": downtime_s / 2},
        "rank": 1,
    }


def test_a_line_in_the_writing_is_left_for_later(demo, tmp_path):
    from demo_runs import read_rows

    log = tmp_path / "loss.csv"
    assert read_rows(log) == []
    log.write_text(HEADER + "1,0.5,0.5,0.1,100,10.0\n2,0.4,0.")
    assert [row.step for row in read_rows(log)] == [1]


def test_steps_done_again_are_no_new_steps_and_the_last_loss_of_a_step_counts(demo, tmp_path):
    run = make_run(demo, tmp_path, [(1, 0.0), (2, 0.1), (3, 0.2), (2, 5.0), (3, 5.1), (4, 5.2)])
    assert [row.step for row in run.new_steps()] == [1, 2, 3, 4]
    assert run.standstill_s(0.25, 0.25) == pytest.approx(4.9)
    assert sorted(run.last_losses()) == [1, 2, 3, 4]


def test_a_standstill_is_looked_for_around_its_migration_only(demo, tmp_path):
    times = [(1, 0.0), (2, 0.1), (3, 2.2), (4, 2.3), (5, 9.3), (6, 9.4), (7, 9.5), (8, 9.6)]
    run = make_run(demo, tmp_path, times, events=[migration(2.2, 2.0), migration(9.3, 6.9)])
    assert demo.standstills_s(run) == pytest.approx([2.0, 6.9])


def test_the_step_in_flight_counts_among_those_that_a_restart_does_again(demo, tmp_path):
    run = make_run(
        demo, tmp_path, [(99, 0.0), (100, 1.0), (101, 2.0), (102, 3.0), (101, 20.0), (102, 21.0), (103, 22.0)]
    )
    assert demo.redone_after_restart(run, 3.5) == 3


def test_the_demo_fails_when_a_loss_a_weight_or_a_migration_is_not_as_promised(demo, tmp_path):
    times = [(1, 0.0), (2, 0.1), (3, 0.2)]
    summary = {"faults_injected": ["kill:rank=1,step=2"]}
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    undisturbed = make_run(demo, tmp_path / "a", times)
    relay = make_run(demo, tmp_path / "b", times, summary=summary, events=[migration(0.1, 0.1)])
    assert demo.failure_of(undisturbed, relay) == ""

    relay.digests[2] = "d" * 64
    assert "weights" in demo.failure_of(undisturbed, relay)
    relay.digests = {}
    assert "weights" in demo.failure_of(undisturbed, relay)

    from demo_runs import read_rows

    relay.digests = dict(WEIGHTS)
    write_log(tmp_path / "b" / "loss.csv", times, change="1")
    relay.rows = read_rows(tmp_path / "b" / "loss.csv")
    assert "loss" in demo.failure_of(undisturbed, relay)

    relay.rows, relay.events = undisturbed.rows, []
    assert "migrations" in demo.failure_of(undisturbed, relay)


def test_weights_are_read_rank_by_rank(demo):
    from demo_runs import read_digests

    output = f"step 1/2 loss 3\nrank 0 weights sha256 {'0' * 64}\nrank 1 weights sha256 {'1' * 64}\nrank 2 weights sha"
    assert read_digests(output) == {0: "0" * 64, 1: "1" * 64}
    on_one_line = (
        f"rank 2 weights sha256 {'2' * 64}rank 1 weights sha256 {'1' * 64}\n\nrank 0 weights sha256 {'0' * 64}\n"
    )
    assert read_digests(on_one_line) == {0: "0" * 64, 1: "1" * 64, 2: "2" * 64}


def test_every_fault_of_the_demo_has_a_rank_of_its_own_and_is_understood(demo):
    from torchrelay.protocol.options.faults import parse_fault

    faults = [parse_fault(text) for text in demo.faults(210)]
    assert {f.kind for f in faults} == {"planned", "kill", "stop"}
    assert {f.rank for f in faults} == set(range(demo.RANKS))
    assert all(0 < f.step < 210 for f in faults)


def test_the_picture_is_drawn(demo, tmp_path):
    times = [(step, step * 0.1) for step in range(1, 60)]
    restarted = [*times[:30], *[(step, 20 + step * 0.1) for step in range(20, 60)]]
    runs = []
    for name, rows in (("plain", times), ("relay", times), ("classic", restarted)):
        (tmp_path / name).mkdir()
        runs.append(make_run(demo, tmp_path / name, rows))
    runs[1].events = [{"name": "fault_injected", "fault": "kill:rank=1,step=20", "time_s": 2.0}, migration(2.5, 0.4)]
    demo.draw(*runs, 3.05, tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes().startswith(b"\x89PNG")
