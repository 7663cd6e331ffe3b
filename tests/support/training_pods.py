"""Bare pods that train together as an operator would start them: `python ddp.py` with RANK and WORLD_SIZE, unmodified."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from support.kubectl import Kubectl, wait_for
from support.training import SCRIPTS
from torchrelay.protocol.kube import kube_names as kube

ROOT = Path(__file__).resolve().parents[2]
MIGRATED = "committed"
IMAGE = "localhost/busybox:1"
ON_NODES = os.environ.get("TORCHRELAY_E2E_ON_NODES", "")
"""The folder in which nodes have this machine's folders; empty where they have them at the same paths."""
NODES = tuple(os.environ.get("TORCHRELAY_E2E_NODE_NAMES", "node-1 node-2 node-3").split())


WORDS_OF = """\
import glob, os
def words(f):
    try: return open(f, 'rb').read().split(b'\\0')
    except OSError: return []  # it has ended since
"""
"""For a program that looks for a process in a container."""


def host_folders() -> dict[str, str]:
    """What pods need of this machine to run its Python."""
    base = Path(sys.executable).resolve().parents[1]
    folders = {"usr": "/usr", "lib": "/lib", "lib64": "/lib64", "sources": str(ROOT), "python": str(base)}
    return {name: folder for name, folder in folders.items() if not (name == "python" and folder.startswith("/usr"))}


def on_nodes(folder: object) -> str:
    """Where nodes have a folder of this machine."""
    return f"{ON_NODES}{folder}"


def host_volumes() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and mounts that bring this machine's Python and sources into a container, at the same paths."""
    folders = host_folders()
    volumes = [{"name": name, "hostPath": {"path": on_nodes(folder)}} for name, folder in folders.items()]
    mounts = [{"name": name, "mountPath": folder, "readOnly": True} for name, folder in folders.items()]
    return volumes, mounts


def python() -> str:
    return str(ROOT / ".venv/bin/python")


def summary(migration: dict[str, Any]) -> str:
    """One line, with the seconds of each phase."""
    phases = ", ".join(f"{p['phase']} {p.get('seconds', 0.0):.2f}" for p in migration.get("phases", ()))
    told = {k: migration.get(k) for k in ("kind", "rank", "outcome", "stepsRedone", "downtimeSeconds")}
    return f"{told} ({phases})"


class Training:
    """`protected`: it asks for torchrelay. `held`: steps at which ranks wait for `let_pass`."""

    def __init__(
        self,
        kubectl: Kubectl,
        name: str,
        out: Path,
        protected: bool = True,
    ) -> None:
        self.kubectl, self.name, self.out, self._protected = kubectl, name, out, protected
        self.world_size, self.epochs = 2, 4
        self.spares = 1
        self.held: tuple[int, ...] = ()
        self.restart_policy = "Never"
        self.nodes: tuple[str, ...] = ()
        """Where each rank's pod is put; the scheduler's choice where it is empty."""
        self.more_spec: dict[str, Any] = {}
        self.asked: dict[str, str] = {}
        """Annotations besides the usual ones, without torchrelay.dev/."""
        self.script = "ddp.py"
        self.environ: dict[str, str] = {}

    def start(self, injected: bool = True) -> None:
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": self.name},
            "spec": {
                "clusterIP": "None",
                "publishNotReadyAddresses": True,
                "selector": {"train": self.name},
                "ports": [{"port": 29500}],
            },
        }
        self.kubectl.create(service, *self.manifests())
        if self._protected and injected:
            pods = wait_for(f"pods of {self.name}", lambda: self.pods() or None, 30.0)
            assert all("torchrelay.dev/injected" in p["metadata"]["annotations"] for p in pods.values())

    def manifests(self) -> list[dict[str, Any]]:
        """Besides the Service."""
        return [self.pod(rank) for rank in range(self.world_size)]

    def pod(self, rank: int) -> dict[str, Any]:
        volumes, mounts = host_volumes()
        name = f"{self.name}-{rank}"
        env = {
            "RANK": str(rank),
            "WORLD_SIZE": str(self.world_size),
            "MASTER_ADDR": f"{self.name}-0.{self.name}",
            "MASTER_PORT": "29500",
            "OMP_NUM_THREADS": "1",
            "HOLD_STEPS": ",".join(map(str, self.held)),
            "HOLD_FOLDER": str(self.out),
            **self.environ,
        }
        asked = {"torchrelay.dev/inject": "true", "torchrelay.dev/spares": str(self.spares)}
        asked |= {f"torchrelay.dev/{name}": value for name, value in self.asked.items()}
        annotations = asked if self._protected else {}
        labels = {"train": self.name, "torchrelay.dev/job": self.name}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "labels": labels, "annotations": annotations},
            "spec": {
                "restartPolicy": self.restart_policy,
                **({"nodeName": self.nodes[rank]} if self.nodes else {}),
                "hostname": name,
                "subdomain": self.name,
                "terminationGracePeriodSeconds": 20,
                "containers": [
                    {
                        "name": "train",
                        "image": IMAGE,
                        "command": [python(), str(SCRIPTS / self.script), str(self.out), str(self.epochs)],
                        "env": [{"name": k, "value": v} for k, v in env.items()],
                        "volumeMounts": [*mounts, {"name": "out", "mountPath": str(self.out)}],
                    }
                ],
                "volumes": [*volumes, {"name": "out", "hostPath": {"path": on_nodes(self.out)}}],
                **self.more_spec,
            },
        }

    def let_pass(self, step: int) -> None:
        (self.out / str(step)).touch()

    def signal(self, pod: str, number: int) -> None:
        """To the process that runs the script, from the agent's container, which sees it."""
        script = (
            WORDS_OF
            + "pids = [int(f.split('/')[2]) for f in glob.glob('/proc/[0-9]*/cmdline')\n"
            + "        if b'/training_scripts/' in b' '.join(words(f)[1:2])]\n"
            + f"os.kill(pids[0], {int(number)})\n"
            + "print(len(pids))"
        )
        found = self.kubectl("exec", pod, "--container=torchrelay-agent", "--", python(), "-c", script)
        assert int(found) == 1, found

    def processes_here(self, pod: str) -> list[int]:
        """The training processes of the pod, as this machine sees them: the nodes of the test cluster are on it."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                arguments = (entry / "cmdline").read_bytes().split(b"\0")
                environ = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended
            if str(self.out).encode() in arguments and f"HOSTNAME={pod}".encode() in environ:
                found.append(int(entry.name))
        return found

    def wait_until_held_here(self, step: int) -> None:
        """As `wait_until_held`, without the API server."""
        marks = [self.out / f"held-{step}-{rank}" for rank in range(self.world_size)]
        wait_for(f"all ranks before step {step}", lambda: all(m.exists() for m in marks) or None, 50.0)

    def kill_agent(self, pod: str) -> None:
        """By a signal from the container that trains: its own would end with it before it could tell."""
        script = (
            WORDS_OF
            + "import signal\n"
            + "pids = [int(f.split('/')[2]) for f in glob.glob('/proc/[0-9]*/cmdline')\n"
            + "        if b'torchrelay.agent.pod' in b' '.join(words(f))]\n"
            + "pids.remove(os.getpid()) if os.getpid() in pids else None\n"
            + "[os.kill(pid, signal.SIGKILL) for pid in pids]\n"
            + "print(len(pids))"
        )
        found = self.kubectl("exec", pod, "--container=train", "--", python(), "-I", "-S", "-c", script)
        assert int(found) == 1, found

    def restarts(self, pod: str) -> dict[str, int]:
        """By container."""
        status = self.kubectl.get("pod", pod)["status"]
        sidecars = [s for s in status.get("initContainerStatuses", ()) if s["name"] == kube.AGENT_CONTAINER]
        return {s["name"]: s["restartCount"] for s in [*status.get("containerStatuses", ()), *sidecars]}

    def resource(self) -> dict[str, Any]:
        """The status of the TrainingJob; empty before there is one."""
        found = self.kubectl.items("trainingjobs", f"--field-selector=metadata.name={self.name}")
        return (found[0].get("status") or {}) if found else {}

    def wait_until_ready(self, spares: int | None = None) -> None:
        """All ranks train, and the spares are warm."""
        wanted = self.spares if spares is None else spares

        def ready() -> bool | None:
            status = self.resource()
            at_work = status.get("worldSize") == self.world_size and status.get("step", 0) >= 1
            return True if at_work and status.get("sparesWarm", 0) >= wanted else None

        wait_for(f"{self.name} with {wanted} warm spares", ready, 120.0, self.describe)

    def wait_until_held(self, step: int) -> None:
        """All ranks wait before that step."""

        def held() -> bool | None:
            status = self.resource()
            known = sum(status.get("rankStates", {}).values()) == self.world_size
            return True if known and status["step"] >= step - 1 else None

        wait_for(f"all ranks before step {step}", held, 60.0, self.describe)

    def wait_until_copied(self, rank: int) -> None:
        """Whole copies of the rank's journals are in another pod, which is there: it may be lost with its own."""

        def copied() -> bool | None:
            log = self.kubectl(
                "logs",
                "--namespace=torchrelay-system",
                "--selector=app.kubernetes.io/component=controller",
                "--container=controller",
                "--tail=-1",
            )
            keeper, gone = "", set()
            for line in log.splitlines():
                if f"/{self.name}: journals_kept " in line:
                    told = json.loads(line[line.index("{") :])
                    keeper = told["node"].partition(":")[0] if told["rank"] == rank else keeper
                elif found := re.search(rf"/{re.escape(self.name)}: (?:release|delete): pod ([^,]+),", line):
                    gone.add(found.group(1))
            return True if keeper and keeper not in gone and keeper in self.pods() else None

        wait_for(f"copies of the journals of rank {rank}", copied, 60.0, self.describe)

    def wait_for_migration(
        self, outcome: str = MIGRATED, within_s: float = 90.0, count: int = 1
    ) -> list[dict[str, Any]]:
        """The status of the job's first migrations that have come to an end as `outcome`."""

        def over() -> list[dict[str, Any]] | None:
            ended = [s for s in self.migrations() if s.get("outcome") == outcome]
            return ended if len(ended) >= count else None

        return wait_for(f"a migration that is {outcome}", over, within_s, self.describe)

    def wait_until_adopted(self) -> None:
        """A controller that was not there when the job began knows all of it."""
        before = self.resource()

        def adopted() -> bool | None:
            lease = self.kubectl.get("lease", "torchrelay-controller", "--namespace=torchrelay-system")["spec"]
            try:
                log = self.kubectl(
                    "logs",
                    "--namespace=torchrelay-system",
                    "--selector=app.kubernetes.io/component=controller",
                    "--container=controller",
                    "--tail=-1",
                )
            except AssertionError:
                return None  # its container is being made
            known = all(f"{r['worker']} was there before" in log for r in before["ranks"])
            return True if lease.get("holderIdentity") and known else None

        wait_for("a controller that has adopted the job", adopted, 90.0, self.describe)
        self.wait_until_ready()

    def delete_by_force(self, pod: str) -> None:
        """Returns once its rank is being replaced: until then its process may live, and ranks that go on come to their end."""
        before = len(self.migrations())
        self.kubectl("delete", "pod", pod, "--force", "--grace-period=0")

        def replaced() -> bool | None:
            begun = self.migrations()[before:]
            return True if any(p["phase"] == "quiesce" for m in begun for p in m.get("phases", ())) else None

        wait_for(f"a migration for {pod} that is quiesce", replaced, 60.0, self.describe)

    def migration_names(self) -> list[str]:
        found = self.kubectl.items("migrations")
        return sorted(m["metadata"]["name"] for m in found if m["spec"]["job"] == self.name)

    def migrations(self) -> list[dict[str, Any]]:
        """Statuses, the oldest first."""
        found = [m for m in self.kubectl.items("migrations") if m["spec"]["job"] == self.name]
        return [m.get("status") or {} for m in sorted(found, key=lambda m: m["metadata"]["creationTimestamp"])]

    def wait_for_phase(self, phase: str) -> None:
        def there() -> bool | None:
            return True if any(p["phase"] == phase for m in self.migrations() for p in m.get("phases", ())) else None

        wait_for(f"a migration that is {phase}", there, 60.0, self.describe)

    def wait_until_succeeded(self, within_s: float = 150.0) -> None:
        """Every rank has left its results."""

        def over() -> bool | None:
            return True if all((self.out / f"rank-{rank}.json").exists() for rank in range(self.world_size)) else None

        wait_for(f"the end of {self.name}", over, within_s, self.describe)

    def pods(self) -> dict[str, dict[str, Any]]:
        found = self.kubectl.items("pods", f"--selector=torchrelay.dev/job={self.name}")
        return {pod["metadata"]["name"]: pod for pod in found}

    def ended(self) -> set[str]:
        """Pods whose containers all have ended."""
        return {name for name, pod in self.pods().items() if pod["status"]["phase"] in ("Succeeded", "Failed")}

    def describe(self) -> str:
        """All that a person would look at."""
        text = [self.kubectl("get", "pods,migrations,trainingjobs,sparepools", "--output=wide")]
        for name, pod in self.pods().items():
            for container in pod["spec"]["containers"]:
                try:
                    log = self.kubectl("logs", name, f"--container={container['name']}", "--tail=30")
                except AssertionError as e:
                    log = str(e)
                text.append(f"--- {name}/{container['name']}\n{log}")
        text.append(self.kubectl("get", "migrations,trainingjobs", "--output=yaml"))
        return "\n".join(text)

    def delete(self) -> None:
        self.kubectl(
            "delete",
            "pods",
            f"--selector=torchrelay.dev/job={self.name}",
            "--grace-period=0",
            "--force",
            "--wait=false",
        )
        self.kubectl("delete", "service", self.name, "--ignore-not-found")
        if self._protected:
            self.kubectl("delete", "trainingjobs", self.name, "--ignore-not-found", "--wait=false")
            self.kubectl("delete", "sparepools", self.name, "--ignore-not-found", "--wait=false")
