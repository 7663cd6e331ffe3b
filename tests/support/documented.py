"""What becomes of each command of ours in the docs: which test types it, or why none does."""

from __future__ import annotations

import shlex
from pathlib import Path

from support.command_lines import in_blocks

ROOT = Path(__file__).parents[2]
FOLLOWED = ("tutorial.md", "tutorial-cluster.md")
"""Pages that tests follow from their first command to their last: test_tutorial.py on a machine, and in a cluster."""

BESIDE_A_JOB = (
    "torchrelay status",
    "torchrelay spares list pretrain",
    "torchrelay quarantine list",
    "torchrelay events",
    "torchrelay events --json",
    "torchrelay events --follow",
    "torchrelay dashboard",
    "torchrelay dashboard --run 7e70abbe",
    "torchrelay migrate --rank 2 --reason 'node needs a new fan'",
    "torchrelay spares add 1 pretrain",
    "torchrelay migrate pretrain --rank 2 --reason 'node needs a new fan' --json",
    "torchrelay explain",
    "torchrelay explain m2 pretrain",
    "torchrelay checkpoint",
    "torchrelay checkpoint pretrain --reason 'before the maintenance' --json",
    "torchrelay history",
    "torchrelay history pretrain -n 100 --json",
    "torchrelay report",
    "torchrelay report pretrain --checkpoint-every 1h --restart 10m --format markdown",
    "torchrelay stop pretrain",
    "torchrelay dashboard pretrain",
    "torchrelay dashboard run.jsonl",
)
"""Typed in this order beside one job of three ranks, the last ones when it is over."""

IN_SENTENCES = ("torchrelay plot RUN -o run.png",)
"""Typed when that job is over, with its name for RUN."""

OF_OTHER_MACHINES = (
    "torchrelay drain n1 --reason 'a new switch'",
    "torchrelay drain n1 --reason 'new switch in rack 7'",
    "torchrelay quarantine add 'GPU-3f2a…' --reason 'a colleague tests it'",
    "torchrelay quarantine clear 'GPU-3f2a…' --reason 'was reset' --check",
    "torchrelay quarantine clear n1 --reason done",
)
"""About a second machine, or a GPU: asked of a controller that says it has them."""

WITHOUT_A_JOB = (
    "torchrelay doctor",
    "torchrelay doctor --nproc-per-node 2 --spares 1 train.py --any --args",
    "torchrelay doctor --nproc-per-node 4 --spares 1 train.py --any --args",
    "torchrelay bench spares --gpus 1024 --days 30",
    "torchrelay bench spares --gpus 1024 --repair-hours 4 --picture spares.png --out spares.json",
    "torchrelay inject -f job.yaml",
    "torchrelay inject -f - --ca-file ca.crt --sidecar native --image registry/agent:1",
)
LONGER = (
    "torchrelay check --nproc-per-node 2 train.py",
    "torchrelay check --nproc-per-node 4 train.py --any --args",
    "torchrelay bench scaling --picture scaling.png --out scaling.json",
)
"""Some 20 s of processor time each: `make test-all` has them."""

RUNS = (
    "torchrelay run --nproc-per-node 4 --spares 1 train.py --any --args",
    "torchrelay run --nproc-per-node 4 --spares 1 -m package.train --any --args",
    "torchrelay run --nproc-per-node 3 --spares 1 train.py --any --args",
    "torchrelay run --nproc-per-node 3 --spares 1 -m package.train --any --args",
    "torchrelay run --notify-format slack train.py",
    "torchrelay run --nproc-per-node 4 --spares 1 --watch loss:action=stop --watch grad-norm:action=retry,over=10"
    " --watch replicas:every=100 train.py",
    "torchrelay run --nproc-per-node 4 --spares 1 train.py",
    "torchrelay run --metrics-port 29480 --nproc-per-node 4 --spares 1 train.py",
    "torchrelay run --nproc-per-node 8 --spares 1 --buddy-every 50 train.py",
)
"""They start the script on so many ranks. It imports no torch: what each option does in training has tests of its own."""

IN_A_CLUSTER = (
    "kubectl torchrelay status --all-namespaces",
    "kubectl torchrelay status llama -n training --watch",
    "kubectl torchrelay migrate llama --rank 2 --reason 'the fan is loud'",
    "kubectl torchrelay drain gpu-17 --reason 'new switch in rack 7'",
    "kubectl torchrelay dashboard",
    "kubectl torchrelay history --kept",
    "kubectl torchrelay history --kept llama --json",
)
"""Asked of an API server in the test's own process."""

_MACHINES = "needs two machines that know each other by name; tests/faults/machines/ has such jobs"
_DRILL = "some minutes; a drill of the tutorial is run, tests/integration/commands/test_drill.py has others"
_MEASURES = "a measurement of minutes to hours; tests/integration/commands/test_race.py runs a small one"
_SCORE = (
    "hours, with frameworks that are not installed for tests; tests/faults/frameworks/test_relay_score.py runs a cell"
)
ONLY_READ = {
    "torchrelay run --nnodes 2 --node-rank 0 --master-addr node0 --nproc-per-node 4 --spares 1 train.py": _MACHINES,
    "torchrelay run --nnodes 2 --node-rank 1 --master-addr node0 --nproc-per-node 4 --spares 1 train.py": _MACHINES,
    "torchrelay run --nnodes 2 --node-rank 0 --master-addr node0 --nproc-per-node 4 --spares 1"
    " --jit-dir /shared/jit train.py": _MACHINES,
    "torchrelay run --nnodes 2 --node-rank 1 --master-addr node0 --nproc-per-node 4 --spares 1"
    " --jit-dir /shared/jit train.py": _MACHINES,
    "torchrelay run --nnodes '$SLURM_NNODES' --nproc-per-node 8 --spares 1 train.py": "needs Slurm; "
    "tests/integration/commands/test_slurm.py runs its script with a stand-in for srun",
    "torchrelay doctor --nnodes 2 --node-rank 0 --master-addr node0 --nproc-per-node 4 train.py": _MACHINES,
    "torchrelay doctor --nnodes 2 --node-rank 1 --master-addr node0 --nproc-per-node 4 train.py": _MACHINES,
    "torchrelay drill --nproc-per-node 2 train.py --any --args": _DRILL,
    "torchrelay drill --nproc-per-node 2 train.py": _DRILL,
    "torchrelay drill --faults 24 --steps 100 --json drill.json --picture drill.png -m package.train --any --args": _DRILL,
    "torchrelay run --nproc-per-node 3 --spares 1 --inject xid:rank=1,code=79,step=20 train.py": "builds a library of a "
    "GPU's maker; tests/faults/failures/test_device_faults.py strikes with it at other steps",
    "torchrelay run --nproc-per-node 8 --spares 1 -m torchtitan.train --job.config_file config.toml": "needs torchtitan; "
    "a program of the relay score (tests/corpus/programs/framework_torchtitan.py) runs it",
    "torchrelay bench relay-score": _SCORE,
    "torchrelay bench relay-score --entry nanogpt --kind kill": _SCORE,
    "torchrelay bench relay-score --backend nccl": "needs GPUs",
    "torchrelay bench relay-score --full --together 8 --resume": _SCORE,
    "torchrelay bench scaling --walk 8 --walk 64 --walk 256 --size 16384 --state-gb 40 --step-s 20": _MEASURES,
    "torchrelay bench race --quick": _MEASURES,
    "torchrelay bench race --arm checkpoint --arm torchrelay": _MEASURES,
    "torchrelay bench race --kind stop --faults 4 --repetitions 5": _MEASURES,
    "torchrelay bench race --script train.py --script-for checkpoint=train_ckpt.py -- --lr 0.1": _MEASURES,
}
"""Command -> why no test types it as it stands. That the program would read it is tested all the same."""

BY_OTHERS = {
    "torchrelay top": "needs a terminal; tests/unit/cli/display/test_top_view.py",
    "torchrelay bench detect": "tests/unit/cli/detect/test_score.py",
    "kubectl torchrelay inject": "as `torchrelay inject`; tests/unit/cli/commands/test_inject.py",
    "kubectl torchrelay top": "needs a terminal; tests/unit/cli/cluster/test_top.py",
    "kubectl torchrelay stop": "tests/unit/cli/cluster/test_report.py",
    "kubectl torchrelay checkpoint": "tests/unit/cli/cluster/test_kubectl.py",
    "kubectl torchrelay quarantine list": "tests/unit/cli/cluster/test_kubectl.py",
    "kubectl torchrelay quarantine add": "tests/unit/cli/cluster/test_kubectl.py",
    "kubectl torchrelay quarantine clear": "tests/unit/cli/cluster/test_kubectl.py",
}
"""A command that stands in no block of the pages -> what tests it."""

TYPED = (*BESIDE_A_JOB, *OF_OTHER_MACHINES, *WITHOUT_A_JOB, *LONGER, *RUNS, *IN_A_CLUSTER)


def pages() -> list[Path]:
    """Return those whose commands people write; of docs/reference the commands' own page is made, with its usage."""
    docs = (page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "reference")
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *docs]


def followed() -> list[str]:
    """Return the commands of the pages that tests follow."""
    texts = (page.read_text("utf-8") for page in pages() if page.name in FOLLOWED)
    return [shlex.join(words) for text in texts for words in in_blocks(text)]


def commands_of_pages() -> dict[str, list[str]]:
    """Return each command in a block of a page that no test follows as a whole, with the pages' names."""
    found: dict[str, list[str]] = {}
    for page in pages():
        if page.name not in FOLLOWED:
            for words in in_blocks(page.read_text("utf-8")):
                found.setdefault(shlex.join(words), []).append(page.name)
    return found
