"""Training scripts for `torchrelay check`, most of which cannot be protected. `# GAP kind` marks the line to be named."""

from __future__ import annotations

import textwrap

_HEAD = """
import itertools, os, socket, sqlite3, subprocess, sys, threading
import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

def batches(**more):
    return DataLoader(TensorDataset(torch.randn(80, 8)), batch_size=4, **more)

def step(model, opt, x):
    loss = model(x).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    return loss

def start(**more):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(torch.nn.Linear(8, 8), **more)
    return model, torch.optim.AdamW(model.parameters())
"""

_BODIES = {
    "sound": """
        model, opt = start()
        for (x,) in batches():
            step(model, opt, x)
    """,
    "state": """
        class Trainer:
            def __init__(self):
                self.model, self.opt = start()
                self.replay = np.zeros(2_000_000)  # GAP array
                self.db = sqlite3.connect(":memory:")  # GAP object
                self.sock = socket.socket()  # GAP object
                self.kept = batches(num_workers=1, persistent_workers=True)  # whose workers tell how they are
                self.stream, _ = itertools.tee(itertools.repeat((torch.ones(4, 8),)))  # GAP iterator

            def fit(self):
                for epoch in range(20):
                    for (x,) in self.kept:
                        (y,) = next(self.stream)
                        self.replay[epoch] += 1
                        step(self.model, self.opt, x + y)

        Trainer().fit()
    """,
    "generator_in_a_variable": """
        def endless(loader, lines):
            while True:
                for batch in loader:
                    lines.readline()
                    yield batch

        def main():
            model, opt = start()
            stream = endless(batches(), open(__file__))  # GAP iterator
            for n in range(50):
                (x,) = next(stream)
                step(model, opt, x)

        main()
    """,
    "library_comm_hook": """
        def counting(seen):
            def count(state, bucket):
                seen.append(bucket.index())
                return default_hooks.allreduce_hook(state, bucket)

            return count

        dist.init_process_group("gloo")
        model = DDP(torch.nn.Linear(8, 8))  # GAP ddp
        model.register_comm_hook(None, default_hooks.fp16_compress_wrapper(counting([])))
        opt = torch.optim.SGD(model.parameters(), 0.1)
        for (x,) in batches():
            step(model, opt, x)
    """,
    "memory_of_all_ranks": """
        import nvshmem.core

        model, opt = start()
        nvshmem.core.init()  # GAP nvshmem
        for (x,) in batches():
            step(model, opt, x)
    """,
    "closure_called_again": """
        dist.init_process_group("gloo")
        model = DDP(torch.nn.Linear(8, 8))
        class Twice(torch.optim.SGD):
            def step(self, closure):
                super().step(closure)
                return super().step(closure)

        opt = Twice(model.parameters(), 0.1)
        for (x,) in batches():
            def closure():
                opt.zero_grad()
                loss = model(x).pow(2).mean()
                loss.backward()
                return loss

            opt.step(closure)  # GAP closure
    """,
    "no_loop": """
        model, opt = start()
        list(map(lambda b: step(model, opt, b[0]), batches()))
    """,
    "no_replica": """
        model, opt = start()
        mine = torch.zeros(50_000)
        for (x,) in batches():
            step(model, opt, x)
            mine = mine + dist.get_rank()
    """,
    "collectives_beside": """
        model, opt = start()
        beside = dist.new_group()
        for (x,) in batches():
            step(model, opt, x)
            thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(1),), kwargs={"group": beside})
            thread.start()
            thread.join()
    """,
    "large_tensor_after_the_step": """
        model, opt = start()
        for (x,) in batches():
            big = torch.randn(600_000)
            step(model, opt, x)
            total = float(big.sum())
    """,
    "no_process_group": """
        for n in range(5):
            print(n)
    """,
    "other_backend": """
        from torch.testing._internal.distributed.fake_pg import FakeStore
        dist.init_process_group("fake", rank=int(os.environ["RANK"]), world_size=2, store=FakeStore())
        for n in range(3):
            pass
    """,
    "failing": """
        start()
        raise ValueError("a bug of the script")
    """,
    "failing_in_a_step": """
        model, opt = start()
        for (x,) in batches():
            step(model, opt, x)
            raise ValueError("a bug in the loop")
    """,
    "endless_set_up": """
        start()
        threading.Event().wait()
    """,
    "traces": """
        import atexit, shutil, tempfile
        atexit.register(lambda: open("at-exit", "w").close())
        os.makedirs("made/deeper", exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as file:
            file.write("published")
        os.replace(file.name, "replaced.txt")
        os.rename("moved.txt", "moved-away.txt")
        shutil.rmtree("old")
        os.makedirs("old")
        assert open("replaced.txt").read() == "published" and os.listdir("old") == [] and not os.path.exists("moved.txt")
        log, kept = open("made/log.txt", "w"), open("kept.txt", "w")
        model, opt = start()
        try:
            for (x,) in batches():
                print(step(model, opt, x).item(), file=log, flush=True)
                kept.write("overwritten"), kept.flush()
                torch.save(model.state_dict(), "made/deeper/model.pt")
                torch.save(model.state_dict(), "best.pt")
        finally:
            open("done.txt", "w").close()
        print("a whole run", os.environ["TORCHRELAY_CHECK"])
    """,
}


def script(name: str) -> str:
    """The source of one of them."""
    return _HEAD + textwrap.dedent(_BODIES[name])


def marked(source: str) -> list[tuple[str, int]]:
    """Kind and line number of each marked line."""
    lines = enumerate(source.splitlines(), 1)
    return [(line.partition("# GAP ")[2], number) for number, line in lines if "# GAP " in line]
