"""The demo's GPT in torchft's loop, one rank in each replica group: the arm `torchft` of `torchrelay bench race`.

It is started once for each replica group, REPLICA_GROUP_ID, of NUM_REPLICA_GROUPS. A group that comes back takes model,
optimizer and scheduler from another one, at the step where the others are.
"""

import os
import time
from datetime import timedelta

import torch
import torchft
import train_gpt
from torch.utils.data import DataLoader


def wait_for_all_groups(folder, group, groups) -> None:
    """At the job's start alone: the first of them would train without the others, who are only some tenths of a second late."""
    (folder / f"started-{group}").touch()
    while not all((folder / f"started-{other}").exists() for other in range(groups)):
        time.sleep(0.01)


def main() -> None:
    args = train_gpt.parse_args()
    group, groups = int(os.environ["REPLICA_GROUP_ID"]), int(os.environ["NUM_REPLICA_GROUPS"])
    device = train_gpt.choose_device(args.device)
    torch.use_deterministic_algorithms(args.deterministic)
    torch.manual_seed(args.seed + group)

    dataset = train_gpt.Windows(train_gpt.make_text(args.sequences * args.window + 1, args.seed), args.window)
    sampler = torchft.DistributedSampler(
        dataset,
        replica_rank=group,
        num_replica_groups=groups,
        group_rank=0,
        num_replicas=1,
        shuffle=True,
        seed=args.seed,
    )
    loader = DataLoader(dataset, batch_size=args.batch, sampler=sampler, drop_last=True)
    model = train_gpt.GPT(len(dataset.alphabet), args.window, args.width, args.layers, args.heads, args.dropout)
    model = model.to(device)

    def state_dict():
        return {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
        }

    def load_state_dict(state) -> None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])

    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=float(os.environ.get("RACE_COLLECTIVE_TIMEOUT_S", "5")))),
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"group_{group}",
        timeout=timedelta(seconds=float(os.environ.get("RACE_MANAGER_TIMEOUT_S", "30"))),
    )
    ddp = torchft.DistributedDataParallel(manager, model, bucket_cap_mb=1)
    inner = torch.optim.AdamW(ddp.parameters(), lr=args.lr, weight_decay=0.1)
    optimizer = torchft.Optimizer(manager, inner)
    total_steps = args.epochs * len(loader)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        inner, lambda step: train_gpt.learning_rate_factor(step, args.warmup, total_steps)
    )

    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "loss.csv"
    log = train_gpt.open_log(path, resumed=path.exists()) if group == 0 else None

    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        wait_for_all_groups(args.out, group, groups)

    ddp.train()
    epoch = 0
    while manager.current_step() < total_steps:
        sampler.set_epoch(epoch)
        for x, y in loader:
            x, y = x.to(device), y.to(device)
            optimizer.zero_grad()
            before = manager.current_step()
            loss = ddp(x, y)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            optimizer.step()
            step = manager.current_step()
            if step > before:  # the group had all others' gradients, or those of who was left
                scheduler.step()

            mean_loss = loss.detach().cpu().clone()
            manager.allreduce(mean_loss).wait()
            if log is not None:
                lr, tokens = scheduler.get_last_lr()[0], manager.num_participants() * x.numel()
                log.write(f"{step},{loss.item():.9g},{mean_loss.item():.9g},{lr:.9g},{tokens},{time.time():.6f}\n")
            if group == 0 and (step % args.print_every == 0 or step == total_steps):
                print(f"step {step}/{total_steps} loss {mean_loss.item():.4f}", flush=True)
            if step >= total_steps:
                break
        epoch += 1

    if log is not None:
        log.close()
    print(f"rank {group} weights sha256 {train_gpt.weights_digest(model)}", flush=True)
    manager.shutdown()


if __name__ == "__main__":
    main()
