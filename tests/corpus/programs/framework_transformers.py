"""A small GPT-2 under transformers.Trainer: accumulation, evaluation, saving, a collator that draws numbers, a callback."""

import os
import random
import sys

import ending
import pace
import setting
import torch
import torch.distributed as dist
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed
from transformers.trainer_callback import ExportableState

VOCABULARY, LENGTH = 64, 12


class Tokens(Dataset):
    def __init__(self, count, seed):
        fixed = torch.Generator().manual_seed(seed)
        self.rows = torch.randint(0, VOCABULARY, (count, LENGTH), generator=fixed)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def collate(items):
    labels = torch.stack([item["input_ids"] for item in items])
    noisy = torch.where(torch.rand(labels.shape) < 0.1, torch.randint(0, VOCABULARY, labels.shape), labels)
    return {"input_ids": noisy, "labels": labels}


class Count(TrainerCallback, ExportableState):
    """A user's callback, with state of its own."""

    def __init__(self):
        self.seen, self.parts = [], 0

    def on_substep_end(self, args, state, control, **kwargs):
        self.parts += 1

    def on_step_end(self, args, state, control, **kwargs):
        pace.work()
        self.seen.append(random.random())

    def on_prediction_step(self, args, state, control, **kwargs):
        pace.strike("evaluation")

    def on_log(self, args, state, control, **kwargs):
        pace.strike("logging")

    def on_save(self, args, state, control, **kwargs):
        if not state.is_world_process_zero:  # has no part in what is written but its generators
            pace.strike("saving")

    def state(self):
        """What a checkpoint holds of it: the Trainer asks while it saves, and once before it trains."""
        if self.seen:
            pace.strike("saving")
        return {"args": {}, "attributes": {"parts": self.parts}}


def main():
    set_seed(7)
    sizes = {"vocab_size": VOCABULARY, "n_positions": LENGTH, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(bos_token_id=0, eos_token_id=0, **sizes))
    args = TrainingArguments(
        output_dir=os.path.join(setting.out(), "checkpoints"),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        num_train_epochs=2,
        learning_rate=1e-3,
        warmup_steps=2,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=5,
        save_steps=6,
        save_total_limit=1,
        use_cpu=setting.DEVICE == "cpu",
        seed=7,
        report_to=[],
        disable_tqdm=True,
        # A sampler of torch's own has a generator that moves on from epoch to epoch, and every rank is told its seed.
        accelerator_config={"use_seedable_sampler": "own-sampler" not in sys.argv},
    )
    count = Count()
    trainer = Trainer(
        model=model,
        args=args,
        train_dataset=Tokens(66, 1),
        eval_dataset=Tokens(10, 2),
        data_collator=collate,
        callbacks=[count],
    )
    trainer.train()
    history = [
        {k: v for k, v in h.items() if "runtime" not in k and "per_second" not in k} for h in trainer.state.log_history
    ]
    ending.write(
        [h["loss"] for h in history if "loss" in h],
        model=model,
        optimizer=trainer.optimizer,
        scheduler=trainer.lr_scheduler,
        history=history,
        counters=[trainer.state.global_step, trainer.state.epoch, count.seen, count.parts],
    )
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
