import json
from pathlib import Path

from torchrelay.cli.race import program
from torchrelay.cli.race.arms import ArmSetting
from torchrelay.cli.race.faults import RaceFault, RaceFaultKind
from torchrelay.cli.race.heat import Heat, Struck
from torchrelay.cli.race.results import judge
from torchrelay.cli.race.step_log import RankLog, Step


def heat(*ends: str, ended: str = "") -> Heat:
    logs = [RankLog([Step(1, n, 100.0 + n) for n in range(1, 6)], end) for end in ends]
    fault = RaceFault(RaceFaultKind.KILL, (1,), 0.5)
    return Heat(9.0, ended, logs, [Struck(fault, 2.0, 103.5)], [])


def setting(folder: Path) -> ArmSetting:
    return ArmSetting(program.demo(20), 2, 1, folder, "python", 5, 1)


def test_a_run_is_equal_only_if_every_rank_has_the_baseline_s_weights(tmp_path: Path) -> None:
    assert judge("relay", 1, heat("a", "a"), setting(tmp_path), ["a", "a"]).is_bitwise is True
    assert judge("relay", 1, heat("a", "b"), setting(tmp_path), ["a", "a"]).is_bitwise is False
    assert judge("relay", 1, heat("a", ""), setting(tmp_path), ["a", "a"]).is_bitwise is False


def test_nothing_is_said_of_the_weights_of_a_run_that_did_not_end(tmp_path: Path) -> None:
    assert judge("relay", 1, heat("a", "a", ended="exit code 1"), setting(tmp_path), ["a", "a"]).is_bitwise is None
    assert judge("baseline", 1, heat("a", "a"), setting(tmp_path), []).is_bitwise is None


def test_faults_are_told_in_seconds_since_the_first_step(tmp_path: Path) -> None:
    assert judge("relay", 1, heat("a", "a"), setting(tmp_path), []).struck == (("kill of rank 1", 2.0, 2.5),)


def test_phases_are_those_of_committed_migrations_together(tmp_path: Path) -> None:
    events = [
        {"name": "migration_finished", "outcome": "committed", "downtime_s": {"fence": 0.1, "transfer": 0.5}},
        {"name": "migration_finished", "outcome": "aborted", "downtime_s": {"fence": 9.0}},
        {"name": "step_redone"},
        {"name": "migration_finished", "outcome": "committed", "downtime_s": {"fence": 0.2, "transfer": 0.25}},
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events))

    phases_s = judge("relay", 1, heat("a", "a"), setting(tmp_path), []).phases_s

    assert {name: round(s, 6) for name, s in phases_s.items()} == {"fence": 0.3, "transfer": 0.75}


def test_the_final_loss_is_that_of_the_last_step_not_of_the_last_line(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "loss.csv").write_text("step,loss,mean_loss\n9,1.0,1.5\n10,1.0,1.25\n8,1.0,7.0\n")

    assert judge("relay", 1, heat("a", "a"), setting(tmp_path), []).loss == "1.25"
