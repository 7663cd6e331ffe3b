from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from torchrelay.cli.__main__ import main
from torchrelay.cli.app import scripts
from torchrelay.cli.command_line import unsupported
from torchrelay.cli.command_line.given import GivenOptions


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TORCHRELAY_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("")
    return tmp_path / "state"


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[GivenOptions]:
    calls: list[GivenOptions] = []

    def record(given: GivenOptions) -> int:
        calls.append(given)
        return 7

    monkeypatch.setattr(scripts, "_launch", record)
    return calls


def exit_code(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(list(arguments))
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--sapres", "1", "train.py"], "No such option: --sapres (Possible options: --resume, --spares)"),
        (["run", "--spares", "many", "train.py"], "error: --spares: give a whole number\n"),
        (["spares", "add", "0"], "error: N: give a number greater than or equal to 1\n"),
        (
            ["run", "--health-policy", "nowhere", "train.py"],
            "policy nowhere cannot be read: no such file or directory\n",
        ),
        (["run", "--spares", "-1", "train.py"], "--spares -1: give the number of spare processes"),
        (["run"], "Missing argument 'SCRIPT'"),
        (["run", "missing.py"], "missing.py: no such file; give the training script"),
        (["run", "--inject", "explode", "train.py"], "unknown fault 'explode'; use one of planned, kill, stop"),
        (["run", "--inject", "kill:rank=1,step=2", "train.py"], "there is no rank 1"),
        (["run", "--resume", "nowhere", "train.py"], "--resume nowhere: no such folder"),
        (["run", "--rdzv-backend=c10d", "train.py"], "torchrun's --rdzv-backend is not supported"),
        (["run", "--max_restarts", "-3", "train.py"], "--max-restarts -3: give a number, 0 or more"),
        (["frobnicate"], "No such command 'frobnicate'"),
        (["spares", "pretrain"], "No such command 'pretrain'.\nhint: torchrelay spares list pretrain\n"),
        (["quarantine", "my job"], "hint: torchrelay quarantine list 'my job'\n"),
        (["status"], "hint: torchrelay run --help"),
        (["migrate", "--rank", "0"], "Missing option '--reason'"),
        (["migrate", "--rank", "0", "--reason", "fan"], "hint: torchrelay run --help"),
    ],
)
def test_bad_input_ends_with_2_and_starts_nothing(
    arguments: list[str], said: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert said in captured.err
    assert captured.out == ""
    assert not state.exists()


@pytest.mark.parametrize("words", [[], ["quarantine"], ["bench"]])
def test_a_command_without_words_shows_its_help_and_nothing_else(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code(*words) == 2
    told = capsys.readouterr()
    assert "Usage: torchrelay" in told.out + told.err
    assert "error:" not in told.out + told.err


def test_the_exit_code_is_that_of_the_run(launched: list[GivenOptions]) -> None:
    assert exit_code("run", "train.py") == 7
    assert launched == [GivenOptions("train.py")]


def test_everything_after_the_script_is_the_scripts(launched: list[GivenOptions]) -> None:
    arguments = ["--spares", "9", "--help", "-m", "--", "--nproc_per_node=4", "--no_such", "", "-x"]
    exit_code("run", "--spares", "1", "train.py", *arguments)
    assert launched == [GivenOptions("train.py", tuple(arguments), spares=1)]


@pytest.mark.parametrize(
    "spelling",
    [
        ["--nproc-per-node", "2", "--node-rank", "0", "--master-port", "29511", "--log-dir", "logs", "--no-python"],
        ["--nproc_per_node=2", "--node_rank=0", "--master_port=29511", "--log_dir=logs", "--no_python"],
    ],
)
def test_both_spellings_of_torchrun_are_taken(spelling: list[str], launched: list[GivenOptions]) -> None:
    exit_code("run", *spelling, "train.py")
    assert launched == [
        GivenOptions("train.py", nproc_per_node="2", master_port=29511, log_dir=Path("logs"), no_python=True)
    ]


def test_torchruns_short_options_and_environment_are_taken(
    launched: list[GivenOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PET_NPROC_PER_NODE", "5")
    exit_code("run", "--standalone", "-t", "3", "-r", "0:1", "-m", "pkg.train", "-m")
    assert launched == [
        GivenOptions("pkg.train", ("-m",), nproc_per_node="5", tee="3", redirects="0:1", module=True, standalone=True)
    ]


@pytest.mark.parametrize(("words", "rank"), [([], 1), (["--node-rank=0"], 0)])
def test_the_scheduler_says_which_machine_this_is_unless_it_is_given(
    words: list[str], rank: int, launched: list[GivenOptions], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_NODEID", "1")
    monkeypatch.setenv("SLURM_NNODES", "2")
    monkeypatch.delenv("SLURM_STEP_NUM_NODES", raising=False)
    exit_code("run", "--nnodes=2", *words, "train.py")
    assert launched == [GivenOptions("train.py", nnodes="2", node_rank=rank)]


def test_faults_can_be_given_several_times(launched: list[GivenOptions]) -> None:
    exit_code("run", "--inject", "kill:rank=0,step=1", "--inject=stop:rank=0,step=2", "train.py")
    assert launched[0].inject == ("kill:rank=0,step=1", "stop:rank=0,step=2")


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("--version") == 0
    assert capsys.readouterr().out.startswith("torchrelay 0.")


@pytest.mark.parametrize("option", unsupported.ADVICE)
def test_options_that_only_torchrun_has_say_what_to_do(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("run", option, "x", "train.py") == 2
    message = capsys.readouterr().err
    assert f"torchrun's {option} is not supported" in message
    assert "eave" in message


def test_a_full_volume_ends_a_command_with_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "torchrelay.cli", "history"], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert (done.returncode, done.stderr) == (
        1,
        "error: what was to be written is not whole: No space left on device\n",
    )
