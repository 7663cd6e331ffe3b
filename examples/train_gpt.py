"""Trains a small character-level GPT on generated text with DistributedDataParallel.

torchrun --nproc-per-node 3 examples/train_gpt.py
torchrelay run --nproc-per-node 3 --spares 1 examples/train_gpt.py
"""

import argparse
import hashlib
import math
import os
import random
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

SUBJECTS = ["the baker", "a sailor", "my neighbour", "the old clock", "a black cat", "the moon", "our teacher"]
VERBS = ["watches", "follows", "carries", "forgets", "paints", "remembers", "mends", "finds"]
OBJECTS = ["the boat", "a letter", "seven apples", "the broken door", "a song", "the garden", "an umbrella"]
ENDINGS = ["in the rain", "before dawn", "without a word", "again and again", "on the hill", "at last"]


def make_text(length: int, seed: int) -> str:
    """`length` characters of simple sentences."""
    rng = random.Random(seed)
    sentences: list[str] = []
    size = 0
    while size < length:
        words = [rng.choice(SUBJECTS), rng.choice(VERBS), rng.choice(OBJECTS)]
        if rng.random() < 0.5:
            words.append(rng.choice(ENDINGS))
        sentences.append(" ".join(words) + ".\n")
        size += len(sentences[-1])
    return "".join(sentences)[:length]


class Windows(Dataset):
    """Neighbouring windows of a text; the targets are the inputs moved on by one character."""

    def __init__(self, text: str, window: int) -> None:
        self.alphabet = sorted(set(text))
        codes = {c: i for i, c in enumerate(self.alphabet)}
        self.data = torch.tensor([codes[c] for c in text])
        self.window = window

    def __len__(self) -> int:
        return (len(self.data) - 1) // self.window

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * self.window
        piece = self.data[start : start + self.window + 1]
        return piece[:-1], piece[1:]


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        attended = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, symbols: int, window: int, width: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(symbols, width)
        self.positions = nn.Embedding(window, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*[Block(width, heads, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)

    def forward(self, x: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        hidden = self.blocks(self.dropout(self.tokens(x) + self.positions(places)))
        logits = self.head(self.norm(hidden))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def learning_rate_factor(step: int, warmup: int, total: int) -> float:
    if step < warmup:
        return (step + 1) / warmup
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def save_checkpoint(path: Path, model, optimizer, scheduler, epoch: int, batch: int, step: int) -> None:
    """Whoever reads `path` finds a whole checkpoint, the new one or the one before."""
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict(),
        "epoch": epoch,
        "batch": batch,
        "step": step,
    }
    unfinished = path.with_suffix(".tmp")
    torch.save(state, unfinished)
    os.replace(unfinished, path)


def load_checkpoint(path: Path, device: torch.device, model, optimizer, scheduler) -> tuple[int, int, int]:
    """Returns epoch, batches done in it, and steps done."""
    state = torch.load(path, map_location=device)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    scheduler.load_state_dict(state["scheduler"])
    return state["epoch"], state["batch"], state["step"]


def open_log(path: Path, resumed: bool):
    log = open(path, "a" if resumed else "w", buffering=1)  # noqa: SIM115 - open as long as the training runs
    if not resumed:
        log.write("step,loss,mean_loss,lr,tokens,unix_time_s\n")
    return log


def choose_device(name: str) -> torch.device:
    if name == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def mean_over_ranks(value: torch.Tensor) -> torch.Tensor:
    mean = value.detach().clone()
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


def weights_digest(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpt-out"), help="folder of loss.csv and checkpoint.pt")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out, if there is one")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--backend", default="gloo")
    parser.add_argument("--deterministic", action="store_true", help="only deterministic algorithms")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument(
        "--sequences", type=int, default=1260, help="training sequences in an epoch, all ranks together"
    )
    parser.add_argument("--batch", type=int, default=6, help="sequences per rank and step")
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--checkpoint-every", type=int, default=50, help="steps")
    parser.add_argument("--print-every", type=int, default=10, help="steps")
    parser.add_argument("--seed", type=int, default=1234)
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    dist.init_process_group(args.backend)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    device = choose_device(args.device)
    torch.use_deterministic_algorithms(args.deterministic)
    torch.manual_seed(args.seed + rank)

    dataset = Windows(make_text(args.sequences * args.window + 1, args.seed), args.window)
    sampler = DistributedSampler(dataset, shuffle=True, seed=args.seed)
    loader = DataLoader(dataset, batch_size=args.batch, sampler=sampler, drop_last=True)
    model = GPT(len(dataset.alphabet), args.window, args.width, args.layers, args.heads, args.dropout).to(device)
    ddp = DistributedDataParallel(model, bucket_cap_mb=1)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=args.lr, weight_decay=0.1)
    total_steps = args.epochs * len(loader)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, args.warmup, total_steps)
    )

    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint_path = args.out / "checkpoint.pt"
    first_epoch = skip = step = 0
    if args.resume and checkpoint_path.exists():
        first_epoch, skip, step = load_checkpoint(checkpoint_path, device, model, optimizer, scheduler)
        if rank == 0:
            print(f"resumed at step {step}", flush=True)

    log = open_log(args.out / "loss.csv", resumed=step > 0) if rank == 0 else None

    ddp.train()
    for epoch in range(first_epoch, args.epochs):
        sampler.set_epoch(epoch)
        for batch, (x, y) in enumerate(loader):
            if batch < skip:
                continue
            x, y = x.to(device), y.to(device)
            loss = ddp(x, y)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            step += 1

            mean_loss = mean_over_ranks(loss)
            if log is not None:
                lr, tokens = scheduler.get_last_lr()[0], world_size * x.numel()
                log.write(f"{step},{loss.item():.9g},{mean_loss.item():.9g},{lr:.9g},{tokens},{time.time():.6f}\n")
            if rank == 0 and (step % args.print_every == 0 or step == total_steps):
                print(f"step {step}/{total_steps} loss {mean_loss.item():.4f}", flush=True)
            if rank == 0 and step % args.checkpoint_every == 0:
                save_checkpoint(checkpoint_path, model, optimizer, scheduler, epoch, batch + 1, step)
        skip = 0

    if log is not None:
        log.close()
    print(f"rank {rank} weights sha256 {weights_digest(model)}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
