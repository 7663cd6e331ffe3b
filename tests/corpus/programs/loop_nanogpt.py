"""nanoGPT's shape: module level, `while True`, globals, a memory map, a batch fetched ahead, gradient accumulation."""

import math
import os
import tempfile
from contextlib import nullcontext

import ending
import numpy as np
import pace
import setting
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

gradient_accumulation_steps = 2
block_size, batch_size, vocabulary = 12, 4, 64
max_iters, warmup_iters = 15, 4
learning_rate, min_lr = 1e-2, 1e-3
eval_interval = 5
eval_iters = 2


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, 32)
        self.wpe = nn.Embedding(block_size, 32)
        self.block = nn.TransformerEncoderLayer(32, 2, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.lm_head = nn.Linear(32, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        mask = nn.Transformer.generate_square_subsequent_mask(idx.shape[1], idx.device)
        logits = self.lm_head(self.block(x, src_mask=mask, is_causal=True))
        return logits, nn.functional.cross_entropy(logits.view(-1, vocabulary), targets.view(-1))


setting.start(1337)
ddp_rank, ddp_world_size = dist.get_rank(), dist.get_world_size()
master_process = ddp_rank == 0
data_dir = tempfile.mkdtemp()
for split, seed in (("train", 0), ("val", 1)):
    tokens = np.random.default_rng(seed).integers(0, vocabulary, 2000).astype(np.uint16)
    tokens.tofile(os.path.join(data_dir, f"{split}.bin"))


def get_batch(split):
    # a new memory map each time, as against a leak in numpy
    data = np.memmap(os.path.join(data_dir, f"{split}.bin"), dtype=np.uint16, mode="r")
    ix = torch.randint(len(data) - block_size, (batch_size,))
    x = torch.stack([torch.from_numpy(data[i : i + block_size].astype(np.int64)) for i in ix])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + block_size].astype(np.int64)) for i in ix])
    return x.to(setting.DEVICE), y.to(setting.DEVICE)


iter_num = 0
best_val_loss = 1e9
model = GPT().to(setting.DEVICE)
optimizer = torch.optim.AdamW(
    [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ],
    lr=learning_rate,
    betas=(0.9, 0.95),
)
scaler = torch.amp.GradScaler(setting.DEVICE, enabled=False)
ctx = nullcontext()
model = DistributedDataParallel(model)


@torch.no_grad()
def estimate_loss():
    result = {}
    model.eval()
    for split in ["train", "val"]:
        found = torch.zeros(eval_iters)
        for k in range(eval_iters):
            X, Y = get_batch(split)
            with ctx:
                _, loss = model(X, Y)
            found[k] = loss.item()
        result[split] = found.mean()
    model.train()
    return result


def get_lr(it):
    if it < warmup_iters:
        return learning_rate * (it + 1) / (warmup_iters + 1)
    ratio = (it - warmup_iters) / (max_iters - warmup_iters)
    return min_lr + 0.5 * (1.0 + math.cos(math.pi * ratio)) * (learning_rate - min_lr)


losses = []
evaluations = []
X, Y = get_batch("train")
local_iter_num = 0
raw_model = model.module
running_mfu = -1.0
while True:
    lr = get_lr(iter_num)
    for param_group in optimizer.param_groups:
        param_group["lr"] = lr

    if iter_num % eval_interval == 0 and master_process:
        estimates = estimate_loss()
        evaluations.append((iter_num, estimates["train"].item(), estimates["val"].item()))
        if estimates["val"] < best_val_loss:
            best_val_loss = estimates["val"]

    for micro_step in range(gradient_accumulation_steps):
        model.require_backward_grad_sync = micro_step == gradient_accumulation_steps - 1
        with ctx:
            logits, loss = model(X, Y)
            loss = loss / gradient_accumulation_steps
        X, Y = get_batch("train")
        scaler.scale(loss).backward()
    pace.work()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)

    losses.append(loss.item() * gradient_accumulation_steps)
    if local_iter_num >= 3:
        running_mfu = losses[-1] if running_mfu == -1.0 else 0.9 * running_mfu + 0.1 * losses[-1]
    iter_num += 1
    local_iter_num += 1
    if iter_num >= max_iters:
        break

ending.write(
    losses,
    model=model,
    optimizer=optimizer,
    counters=[iter_num, local_iter_num, best_val_loss, running_mfu],
    evaluations=evaluations,
    ahead=[X, Y],
)
setting.end()
