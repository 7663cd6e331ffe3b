"""Ranks are lost in pods: a spare pod takes over, and the job ends with the same weights, bit for bit."""

from __future__ import annotations

from pathlib import Path

from support.training import differences
from support.training_pods import Training


def test_a_killed_worker(training: Training, undisturbed: Path) -> None:
    training.held = (20,)
    training.start()
    training.wait_until_ready()
    # The one process in the pod that runs the script; its pod shares processes.
    kill = "import os,signal,glob\nfor f in glob.glob('/proc/[0-9]*/cmdline'):\n"
    kill += "  if b'ddp.py' in open(f,'rb').read(): os.kill(int(f.split('/')[2]), signal.SIGKILL)"
    from support.training_pods import python

    training.kubectl("exec", f"{training.name}-1", "--container=torchrelay-agent", "--", python(), "-c", kill)
    training.let_pass(20)
    (migration,) = training.wait_for_migration()
    training.wait_until_succeeded()
    assert differences(undisturbed, training.out, 2) == []
    assert migration["kind"] == "unplanned"
    assert migration["rank"] == 1
    assert migration["fromPod"] == f"{training.name}-1"
    assert "-spare-" in migration["toPod"]
    assert [p["phase"] for p in migration["phases"]][-1] == "committed"
    assert "SIGKILL" in migration["reason"] or "takes over" in migration["reason"]
