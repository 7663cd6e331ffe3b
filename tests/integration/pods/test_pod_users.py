"""A pod whose containers run as two users, neither of them with a capability, and one whose volumes have no room.

Real processes of real users: as root alone, which is let go of before they begin.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.ports import free_port

from torchrelay.agent.processes.launch import shim_folders
from torchrelay.protocol import names

TESTS = Path(__file__).parents[2]
ROOT, IMAGES, AGENTS, RANDOM = 0, 1000, 65532, 1000690000
"""`RANDOM`: from the range that OpenShift gives to a namespace."""
WITHIN_S = 120.0
SCRIPT = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for step in range(4):
    optimizer.zero_grad()
    net(torch.randn(3, 4)).sum().backward()
    optimizer.step()
print("trained", flush=True)
dist.destroy_process_group()
"""
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None or shutil.which("unshare") is None,
    reason="other users' processes can be started by root alone, with setpriv and unshare",
)


class Pod:
    """`run`: the volume that both containers have, made as the kubelet makes it."""

    def __init__(self, folder: Path) -> None:
        folder.chmod(0o755)
        self.run, self.script = folder / "run", folder / "train.py"
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.temporary.chmod(0o1777)
        self.run.mkdir()
        self.run.chmod(0o777)
        self.script.write_text(SCRIPT)
        self._processes: list[subprocess.Popen[str]] = []
        self._mounted = False

    def limit_to(self, size: str) -> None:
        """The volume has no more room than that, as a memory-backed one with a limit has."""
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=777", "tmpfs", str(self.run)]
        if subprocess.run(mount, check=False, capture_output=True).returncode:
            pytest.skip("nothing can be mounted here")
        self._mounted = True

    def wait_for(self, path: Path) -> None:
        until_s = time.monotonic() + WITHIN_S
        while not path.exists():
            assert time.monotonic() < until_s, path
            time.sleep(0.02)  # another process makes it, and tells nobody

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()
        if self._mounted:
            subprocess.run(["umount", str(self.run)], check=True)

    def agent(self, user: int) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
        command = [sys.executable, "-m", "support.pod_agent", str(self.run)]
        return self._start(user, command, {"PYTHONPATH": path}, stderr=subprocess.PIPE)

    def train(self, user: int, before: str = "") -> tuple[int, str]:
        """Exit code and output of the script. `before`: commands in a mount namespace of its own."""
        site, roots = shim_folders()
        environ = {
            names.ENV_SOCKET: str(self.run / "agent.sock"),
            names.ENV_WORKER: "train",
            names.ENV_TOKEN_FILE: str(self.run / "shim-token"),
            names.ENV_JOURNAL: str(self.run / "journal"),
            names.ENV_ROOTS: os.pathsep.join(map(str, roots)),
            names.ENV_ASK: "1",
            "TMPDIR": str(self.temporary),
            "PYTHONPATH": str(site),
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
        }
        process = self._start(user, [sys.executable, str(self.script)], environ, before=before)
        output, _ = process.communicate(timeout=WITHIN_S)
        return process.returncode, output

    def _start(
        self,
        user: int,
        command: list[str],
        environ: dict[str, str],
        stderr: int = subprocess.STDOUT,
        before: str = "",
    ) -> subprocess.Popen[str]:
        ids = [f"--reuid={user}", f"--regid={user}", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
        powerless = ["setpriv", *ids, "--no-new-privs", *command]
        if before:
            powerless = ["unshare", "--mount", "sh", "-ec", f'{before}; exec "$@"', "sh", *powerless]
        whole = {**os.environ, "HOME": "/nonexistent", **environ}
        process = subprocess.Popen(powerless, env=whole, stdout=subprocess.PIPE, stderr=stderr, text=True, umask=0o077)
        self._processes.append(process)
        return process


@pytest.fixture
def pod() -> Iterator[Pod]:
    folder = Path(
        tempfile.mkdtemp(prefix="pod-users-")
    )  # not `tmp_path`, which is below a folder that is one user's alone
    made = Pod(folder)
    yield made
    made.close()
    shutil.rmtree(folder)


@pytest.mark.core
@needs_root
@pytest.mark.parametrize(
    ("agent", "training"),
    [(ROOT, IMAGES), (AGENTS, RANDOM), (AGENTS, ROOT)],
    ids=["the image's user", "a random user and no file system to write to", "root"],
)
def test_two_users_share_journals_without_rights_of_root(pod: Pod, agent: int, training: int) -> None:
    of_agent = pod.agent(agent)
    code, output = pod.train(training, READ_ONLY.format(pod.run, pod.temporary) if training == RANDOM else "")
    said, log = of_agent.communicate(timeout=WITHIN_S)
    assert code == 0, output
    assert "trained" in output
    assert "not protecting" not in output, output
    boundaries, left = json.loads(said.splitlines()[-1])
    assert boundaries == [2, 3, 4] or boundaries == [1, 2, 3], log
    assert left == [], "what the other user has written is not removed"


READ_ONLY = "mount --bind {0} {0}; mount -t tmpfs -o mode=1777 tmpfs {1}; mount -o remount,ro,bind /"
"""All of the container's file system but the volume, and a place for temporary files, without which torch does not start."""


@needs_root
def test_where_the_volume_is_full_training_goes_on_with_one_line_that_says_why(pod: Pod) -> None:
    pod.limit_to("64k")
    of_agent = pod.agent(IMAGES)
    pod.wait_for(pod.run / "agent.sock")
    fill = ["dd", "if=/dev/zero", f"of={pod.run / 'of-others'}", "bs=4k"]
    assert subprocess.run(fill, check=False, capture_output=True).returncode != 0, "there is room left"
    code, output = pod.train(IMAGES)
    of_agent.communicate(timeout=WITHIN_S)
    assert code == 0, output
    assert "trained" in output
    (line,) = [line for line in output.splitlines() if line.startswith("torchrelay:")]
    assert "not protecting this process" in line
    assert "No space left on device" in line
