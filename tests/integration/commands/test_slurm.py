"""The script for Slurm in docs/cli.md, as it stands there, with stand-ins for `srun` and `scontrol`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from support import slurm
from support.cli_harness import SECRET, TIMEOUT_S, eventually
from support.ports import free_port
from support.relay_run import plain, read_events
from support.training import SCRIPTS, differences

DOCS = Path(__file__).parents[3] / "docs" / "cli.md"
STAND_INS = Path(slurm.__file__).parent
FIRST_HOLD, SECOND_HOLD = 20, 40


class Batch:
    """The script on two nodes, with one rank each. `folder` is the user's home, working folder and stand-in's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / ".torchrelay-secret").write_text(SECRET)
        (folder / "out").mkdir()
        (folder / "holds").mkdir()
        (folder / "bin").mkdir()
        command = f'#!/bin/sh\nexec {sys.executable} -m torchrelay.cli "$@" '
        (folder / "bin" / "torchrelay").write_text(command)
        (folder / "bin" / "torchrelay").chmod(0o755)
        (folder / "job.sh").write_text(self._script())
        self.process: subprocess.Popen[str]

    def _script(self) -> str:
        (script,) = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", DOCS.read_text(), re.DOTALL)
        first, second = free_port(), free_port()  # both nodes are this machine, where one port is for one of them
        own = f'--controller 127.0.0.1:{first},127.0.0.1:{second} --controller-port "$((SLURM_PROCID ? {second} : {first}))" '
        own += f'--master-port {free_port()} --respawn-limit 0 --events "events-$SLURM_PROCID"'
        program = f"{SCRIPTS / 'ddp.py'} {self.folder / 'out'}"
        for there, here in (
            ("--nproc-per-node 8 --spares 1", f"--nproc-per-node 1 --spares 1 {own}"),
            (" train.py", f" {program}"),
        ):
            assert script.count(there) == 1, script
            script = script.replace(there, here)
        # The name of a task's own file of events is known on its node alone.
        return re.sub(r"(torchrelay run .*)", r"bash -c '\1'", script)

    @contextmanager
    def running(self) -> Iterator[None]:
        environment = os.environ | {
            "PATH": f"{self.folder / 'bin'}:{STAND_INS}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "SLURM_STAND_IN": str(self.folder),
            "SLURM_JOB_ID": "4711",
            "SLURM_NNODES": "2",
            "SLURM_JOB_NODELIST": "127.0.0.1,localhost",
            "TORCHRELAY_STATE_DIR": str(self.folder / "state"),
            "OMP_NUM_THREADS": "1",
            "HOLD_FOLDER": str(self.folder / "holds"),
            "HOLD_STEPS": f"{FIRST_HOLD},{SECOND_HOLD}",
        }
        self.process = subprocess.Popen(
            ["bash", "job.sh"],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield
        finally:
            if self.process.poll() is None:
                for node in (0, 1):
                    self.touch(f"fail-{node}")
            self.said = self.process.communicate(timeout=TIMEOUT_S)[0]
            print(self.said)

    def touch(self, name: str) -> None:
        (self.folder / name).touch()

    def events(self, node: int, name: str) -> list[dict[str, Any]]:
        return [e for e in read_events(self.folder / f"events-{node}") if e["name"] == name]

    def stands_at(self, node: int, step: int) -> bool:
        return any(e["steps"] == step - 1 for e in self.events(node, "progress"))


def test_a_node_fails_and_is_requeued_and_its_place_is_of_use_again(tmp_path: Path) -> None:
    reference = plain(tmp_path / "undisturbed", "ddp.py", ranks=2)
    batch = Batch(tmp_path)
    with batch.running():
        eventually("all train", lambda: batch.stands_at(1, FIRST_HOLD))
        batch.touch("fail-0")  # the one that leads
        batch.touch(f"holds/{FIRST_HOLD}")
        eventually("its rank lives on", lambda: batch.stands_at(1, SECOND_HOLD))
        batch.touch("requeue-0")
        eventually("two spares", lambda: batch.events(1, "progress")[-1]["spares"] == 2)
        batch.touch(f"holds/{SECOND_HOLD}")
        batch.process.wait(TIMEOUT_S)
    assert batch.process.returncode == 0, batch.said
    (moved,) = batch.events(1, "migration_finished")
    assert (moved["outcome"], moved["ranks"], moved["spare"]) == ("committed", [0], "n1.s0")
    assert differences(reference, tmp_path / "out", 2) == [], batch.said
