"""A run says in its folders of checkpoints that it lives, for as long as it does."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from unit.cli.restarting.test_restarting import entered, folder, run_all, say, written

from torchrelay.cli.command_line.options import RunOptions
from torchrelay.cli.controller_client.follow import JobFollower
from torchrelay.cli.restarting import life_sign
from torchrelay.cli.restarting.checkpoints import remove_forgotten
from torchrelay.cli.restarting.life_sign import AGAIN_S, LifeSign
from torchrelay.protocol.events import JobFell, JobFinished, JobStarted

SIGN = "000000ab.0-lives"


def test_a_checkpoint_that_a_run_entered_from_is_kept_in_whichever_folder_it_lies(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir()
    entered_from = folder(other, "eeeeeeee-step7")
    for n in range(10):
        folder(other, f"0000000{n:x}-step5")
    written(entered_from, 1.0)
    sign = LifeSign([own], "dddddddd", Path(entered_from))
    sign.give()
    remove_forgotten([other], time.time())
    assert Path(entered_from).exists()
    sign.end()
    remove_forgotten([other], time.time())
    assert not Path(entered_from).exists()


def test_a_sign_is_renewed_for_as_long_as_the_run_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sign = LifeSign([tmp_path], "dddddddd", None)
    sign.give()
    (path,) = tmp_path.iterdir()
    renewed = []

    async def sleep(pause_s: float) -> None:
        renewed.append((pause_s, path.stat().st_mtime > 0))
        if len(renewed) == 3:
            raise asyncio.CancelledError
        os.utime(path, (0, 0))

    monkeypatch.setattr(life_sign.asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(sign.keep_up())
    assert renewed == [(AGAIN_S, True)] * 3


def test_a_folder_that_was_made_for_the_first_checkpoint_has_a_sign_once_all_begin_again(tmp_path: Path) -> None:
    jit, seen = tmp_path / "jit", []

    def tell(follower: JobFollower, options: RunOptions) -> int:
        seen.append((jit / SIGN).exists())
        say(follower, JobStarted("ab", 1, 0, ("n0",)))
        if options.restarts_done:
            say(follower, entered("m1"), JobFinished(0, "done"))
            return 0
        saved = folder(jit, "000000ab-step30")
        say(follower, JobFell(0, 75, "killed", 31, False, saved, 30, ""), JobFinished(75, "x"))
        return 75

    assert run_all(tmp_path, tell)[0] == 0
    assert seen == [False, True]


def test_a_run_that_is_not_begun_again_is_one_of_those_that_have_ended(tmp_path: Path) -> None:
    jit = tmp_path / "jit"
    ended = [folder(jit, f"0000000{n:x}-step5") for n in range(10)]
    for number, path in enumerate(ended):
        written(path, 1000.0 + number)

    def tell(follower: JobFollower, options: RunOptions) -> int:
        saved = folder(jit, "000000ab-step30")
        say(follower, JobStarted("ab", 1, 0, ("n0",)))
        say(follower, JobFell(0, 75, "it failed", 31, True, saved, 30, ""), JobFinished(75, "x"))
        return 75

    code, ended_run, _, seen = run_all(tmp_path, tell)
    assert (code, len(seen)) == (75, 1)
    assert "the script has failed by itself" in ended_run.no_restart
    assert [Path(path).exists() for path in ended] == [False, *[True] * 9], "with its own there are ten"
    assert (jit / "000000ab-step30").exists()
    assert not (jit / SIGN).exists()
