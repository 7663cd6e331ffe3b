"""What the page is given."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from support import told_runs as t

from torchrelay.dashboard import view
from torchrelay.dashboard.event_lines import EventLines
from torchrelay.dashboard.record import RunRecord
from torchrelay.protocol import events as e
from torchrelay.protocol.errors import UserError
from torchrelay.protocol.messages import JobStatus, RankStatus

NOW_S = t.BEGAN_S + 140


def sections(record: RunRecord, **more: object) -> dict[str, object]:
    made = view.sections(view.Seen(record, NOW_S, **more))  # type: ignore[arg-type]
    assert tuple(made) == view.SECTIONS
    loaded: dict[str, object] = json.loads(json.dumps(made))
    return loaded


def test_the_state_of_every_rank_comes_from_events_alone() -> None:
    begun = sections(t.record_of(t.begins()[:2]))["ranks"]
    assert begun["states"] == "iiii"  # type: ignore[index]
    ranks = sections(t.record_of(t.small_run()))["ranks"]
    assert ranks["states"] == "rrrr"  # type: ignore[index]
    lost = sections(t.record_of([*t.begins(), *t.kill(60)[:6]]))["ranks"]
    assert lost["states"] == "lsss"  # type: ignore[index]
    moving = sections(t.record_of([*t.begins(), *t.move(60, "m1", 2, "n0.w2", "n0.s0", "fan")[:3]]))["ranks"]
    assert moving["states"] == "rrmr"  # type: ignore[index]
    assert moving["told"] == {"2": "It is being moved: fan."}  # type: ignore[index]


def test_the_status_of_a_live_job_says_more_than_its_events() -> None:
    ranks = tuple(RankStatus(r, f"n1.w{r}", "n1", 7, 5, "forward", "running") for r in range(3))
    standing = RankStatus(3, "n2.s0", "n2", 8, 5, "gate", "standing")
    status = JobStatus("a", 4, 0, 0, 0, "protected", "", 3.0, 0, "", (*ranks, standing))
    shown = sections(t.record_of(t.begins()), status=status)["ranks"]
    assert shown["states"] == "rrrs"  # type: ignore[index]
    assert [n["name"] for n in shown["nodes"]] == ["n1", "n2"]  # type: ignore[index]


def test_a_rank_has_the_gpu_of_the_process_that_has_it_now() -> None:
    used = e.DevicesUsed("n0", {f"n0.w{rank}": f"GPU-{rank}a" for rank in range(4)} | {"n0.s0": "GPU-9f"})
    told = [*t.begins(), (t.BEGAN_S + 30, used)]
    assert sections(t.record_of(told))["ranks"]["gpus"] == {str(rank): f"GPU-{rank}a" for rank in range(4)}  # type: ignore[index]
    moved = sections(t.record_of([*told, *t.kill(60)]))["ranks"]
    assert moved["gpus"]["0"] == "GPU-9f"  # type: ignore[index]
    assert sections(t.record_of(t.begins()))["ranks"]["gpus"] == {}  # type: ignore[index]


def test_what_a_node_told_of_its_gpus_before_is_over() -> None:
    record = t.record_of(t.begins())
    for number in range(50):
        record.take(e.DevicesUsed("n0", {f"n0.s{number}": f"GPU-{number}"}), t.BEGAN_S + 30 + number)
    assert record.gpus == {"n0": {"n0.s49": "GPU-49"}}


def test_page_and_view_mean_the_same_states() -> None:
    script = (Path(view.__file__).parent / "page" / "rank_map.js").read_text()
    named = dict(re.findall(r"^  (\w): \[\"(\w+)\"", script, re.MULTILINE))
    assert named == {letter: state for state, letter in view.LETTERS.items()}


def test_a_moved_rank_leads_to_its_migration() -> None:
    ranks = sections(t.record_of(t.small_run()))["ranks"]
    assert ranks["moved"] == {"0": "m1", "2": "m2"}  # type: ignore[index]
    assert view.migration(view.Seen(t.record_of(t.small_run()), NOW_S), "m2") is not None
    assert view.migration(view.Seen(t.record_of(t.small_run()), NOW_S), "m9") is None


def test_a_band_of_the_chart_is_as_wide_as_training_stood_still() -> None:
    chart = sections(t.record_of(t.small_run()))["chart"]
    planned, kill = chart["marks"]  # type: ignore[index]
    assert kill["to"] - kill["from"] == pytest.approx(1.58)
    assert planned["to"] - planned["from"] == pytest.approx(0.6)


def test_a_day_of_ten_thousand_ranks_is_small_enough_to_send() -> None:
    record = t.record_of(t.large_run(hours=3.0))
    shown = view.sections(view.Seen(record, record.newest_s))
    assert len(json.dumps(shown)) < 200_000
    assert len(shown["ranks"]["states"]) == 10_000
    assert shown["ranks"]["counts"] == {"standing": 9999, "lost": 1}
    assert len(shown["chart"]["points"]) <= 601


def test_what_would_have_been_done_is_marked() -> None:
    told = [*t.begins(), *t.bad_gpu(60, 2, outcome="observed"), *t.bad_gpu(70, 1)]
    shown = sections(t.record_of(told))["verdicts"]
    assert [v["would"] for v in shown] == [False, True]  # type: ignore[index, attr-defined]


def test_a_quarantine_that_only_the_status_knows_of_is_shown() -> None:
    status = JobStatus("a", 4, 0, 0, 0, "protected", "", 3.0, 0, "", (), quarantine=("GPU-9: too hot",))
    kept = sections(t.record_of(t.begins()), status=status)["devices"]["quarantine"]  # type: ignore[index]
    assert [(q["subject"], q["reason"]) for q in kept] == [("GPU-9", "too hot")]


def test_nothing_can_be_asked_of_a_run_that_is_over() -> None:
    over = t.record_of([*t.small_run(), (NOW_S, e.JobFinished(0, ""))])
    assert sections(over, actions=True)["job"]["actions"] is False  # type: ignore[index]
    assert sections(t.record_of(t.small_run()), actions=True)["job"]["actions"] is True  # type: ignore[index]


def test_a_file_of_events_comes_to_the_same_as_the_events_read_in_pieces(tmp_path: Path) -> None:
    path = t.write(t.small_run(), tmp_path / "whole.jsonl")
    data = path.read_bytes()
    growing = tmp_path / "growing.jsonl"
    growing.write_bytes(b"")
    lines = EventLines(growing)
    for start in range(0, len(data), 1000):
        with open(growing, "ab") as file:
            file.write(data[start : start + 1000])
        lines.read_all()
    assert sections(lines.record) == sections(t.record_of(t.small_run()))


def test_events_of_another_version_are_passed_over(tmp_path: Path) -> None:
    path = t.write(t.begins(), tmp_path / "events.jsonl")
    with open(path, "a") as file:
        file.write('{"time_s": 1.0, "name": "of_tomorrow", "x": 1}\n{"time_s": 2.0, "name": "spares", "new": 1}\n')
    assert EventLines(path).read_all().run_id == "7e70abbe"


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = t.write(t.begins(), tmp_path / "events.jsonl")
    whole = path.read_bytes()
    path.write_bytes(b'{"time_s": 17\n' + whole + b"[" * 100_000 + b"\n")
    assert EventLines(path).read_all().run_id == "7e70abbe"


@pytest.mark.parametrize("text", ["not json\n", "[]\n", '{"name": "spares"}\n', "7\n"])
def test_a_file_that_has_no_events_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(UserError, match="is not a file of `torchrelay run --events`"):
        EventLines(tmp_path / "x").read_all()
    with pytest.raises(UserError, match="cannot be read"):
        EventLines(tmp_path / "absent").read_all()


def test_a_migration_that_moves_tensors_has_a_bar_until_its_phase_is_over() -> None:
    how_far = e.MigrationProgressed("m1", "transfer", 1 << 30, 2 << 30, 4.0, float(1 << 28), 4.0)
    begun = [*t.begins(), *t.kill(60)[:3], (t.BEGAN_S + 61, e.PhaseChanged("m1", "transfer", 0.1))]
    assert sections(t.record_of(begun))["job"]["progress"] is None  # type: ignore[index]
    told = [*begun, (t.BEGAN_S + 65, how_far)]
    shown = sections(t.record_of(told))["job"]["progress"]  # type: ignore[index]
    text = "50 %, 4.0 s left (1.0 GiB of 2.0 GiB at 256.0 MiB/s)"
    assert shown == {"share": 0.5, "text": text, "what": "handing over tensors"}
    over = [*told, (t.BEGAN_S + 66, e.PhaseChanged("m1", "rebuild", 5.0))]
    assert sections(t.record_of(over))["job"]["progress"] is None  # type: ignore[index]
