"""The demo's GPT with what checkpoint and restart needs: the arm `checkpoint` of `torchrelay bench race`.

All ranks save together and asynchronously (torch.distributed.checkpoint), random generators included. A restarted job goes on
from the newest whole checkpoint. On SIGTERM, the notice of a planned move, all save at the end of the step and end for a restart.
"""

import random
import shutil
import signal
import statistics
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import train_gpt
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


class Checkpoints:
    """Folders `step-N`; one is whole once torch has written its `.metadata`, the last of its files."""

    def __init__(self, folder, every, model, optimizer, scheduler) -> None:
        self.folder, self.every = folder, every
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.group = dist.new_group(backend="gloo")  # a save must not get between the gradients
        self.planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
        self.saving = None
        self.cost_s: list[float] = []

    def state(self, epoch=0, batch=0, step=0):
        optimizer = {f"optimizer.{k}.{n}": v for k, s in self.optimizer_states() for n, v in s.items()}
        return {
            **{f"model.{name}": tensor for name, tensor in self.model.state_dict().items()},
            **optimizer,
            "scheduler": self.scheduler.state_dict(),
            "place": {"epoch": epoch, "batch": batch, "step": step},
            f"generators.{dist.get_rank()}": {"torch": torch.get_rng_state(), "python": random.getstate()},
        }

    def optimizer_states(self):
        names = [name for name, _ in self.model.named_parameters()]
        return zip(names, (self.optimizer.state[p] for p in self.model.parameters()))

    def save(self, epoch, batch, step, wait=False) -> None:
        began_s = time.monotonic()
        if self.saving is not None:
            self.saving.result()
            self.remove_all_but(2)
        path = self.folder / f"step-{step}"
        self.saving = dcp.async_save(
            self.state(epoch, batch, step), checkpoint_id=path, process_group=self.group, planner=self.planner
        )
        self.cost_s.append(time.monotonic() - began_s)
        if wait:
            self.saving.result()
            dist.barrier(self.group)

    def whole(self):
        found = [p.parent for p in self.folder.glob("step-*/.metadata")]
        return sorted(found, key=lambda p: int(p.name.partition("-")[2]))

    def remove_all_but(self, count) -> None:
        if dist.get_rank() == 0:
            for path in self.whole()[:-count]:
                shutil.rmtree(path)

    def load_newest(self) -> tuple[int, int, int]:
        """Returns epoch, batches done in it, and steps done."""
        newest = [str(path) for path in self.whole()[-1:]]
        dist.broadcast_object_list(chosen := newest or [""], src=0)
        if not chosen[0]:
            return 0, 0, 0
        for parameter in self.model.parameters():  # the optimizer makes its state in its first step
            self.optimizer.state[parameter] = {
                "step": torch.zeros(()),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }
        state = self.state()
        dcp.load(state, checkpoint_id=chosen[0], process_group=self.group)
        self.scheduler.load_state_dict(state["scheduler"])
        for group, rate in zip(self.optimizer.param_groups, self.scheduler.get_last_lr()):
            group["lr"] = rate
        self.generators = state[f"generators.{dist.get_rank()}"]
        place = state["place"]
        return place["epoch"], place["batch"], place["step"]

    def restore_generators(self) -> None:
        torch.set_rng_state(self.generators["torch"])
        random.setstate(self.generators["python"])


def main(each_step=lambda: None) -> None:
    args = train_gpt.parse_args()
    dist.init_process_group(args.backend, timeout=timedelta(seconds=30))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = train_gpt.choose_device(args.device)
    torch.use_deterministic_algorithms(args.deterministic)
    torch.manual_seed(args.seed + rank)

    dataset = train_gpt.Windows(train_gpt.make_text(args.sequences * args.window + 1, args.seed), args.window)
    sampler = DistributedSampler(dataset, shuffle=True, seed=args.seed)
    loader = DataLoader(dataset, batch_size=args.batch, sampler=sampler, drop_last=True)
    model = train_gpt.GPT(len(dataset.alphabet), args.window, args.width, args.layers, args.heads, args.dropout)
    model = model.to(device)
    ddp = DistributedDataParallel(model, bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=args.lr, weight_decay=0.1)
    total_steps = args.epochs * len(loader)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: train_gpt.learning_rate_factor(step, args.warmup, total_steps)
    )

    args.out.mkdir(parents=True, exist_ok=True)
    checkpoints = Checkpoints(args.out / "checkpoints", args.checkpoint_every, model, optimizer, scheduler)
    first_epoch, skip, step = checkpoints.load_newest()
    is_resumed = step > 0
    log = train_gpt.open_log(args.out / "loss.csv", resumed=is_resumed) if rank == 0 else None

    noticed = []
    signal.signal(signal.SIGTERM, lambda *_: noticed.append(True))  # a rank that still sets up ends as usual

    ddp.train()
    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)
        for batch, (x, y) in enumerate(loader):
            if batch < skip:
                continue
            if is_resumed:
                checkpoints.restore_generators()
                is_resumed = False
            x, y = x.to(device), y.to(device)
            loss = ddp(x, y)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            step += 1
            each_step()

            # Whether anybody was given notice travels with the loss.
            both = torch.stack([loss.detach().cpu(), torch.tensor(float(len(noticed)))])
            dist.all_reduce(both)
            mean_loss, notices = both[0] / world_size, int(both[1])
            if log is not None:
                lr, tokens = scheduler.get_last_lr()[0], world_size * x.numel()
                log.write(f"{step},{loss.item():.9g},{mean_loss.item():.9g},{lr:.9g},{tokens},{time.time():.6f}\n")
            if rank == 0 and (step % args.print_every == 0 or step == total_steps):
                print(f"step {step}/{total_steps} loss {mean_loss.item():.4f}", flush=True)
            if notices or step % args.checkpoint_every == 0:
                checkpoints.save(epoch, batch + 1, step, wait=notices > 0)
            if notices and step < total_steps:
                sys.exit(1)
        skip = 0

    if checkpoints.saving is not None:
        checkpoints.saving.result()
    if log is not None:
        log.close()
    if rank == 0 and checkpoints.cost_s:
        print(f"a save took {statistics.median(checkpoints.cost_s):.4f} s of training", flush=True)
    print(f"rank {rank} weights sha256 {train_gpt.weights_digest(model)}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
