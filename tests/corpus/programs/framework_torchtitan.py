"""torchtitan's small llama3, HSDP 2 x 2, on processors: its own Trainer, with a tokenizer and a text made on the spot.

torchtitan assumes CUDA. What is patched here is torch, so that it answers for a processor; torchtitan is as it comes.
"""

import importlib
import inspect
import json
import os
import random
import sys
import tempfile
import types

import ending
import pace
import setting
import torch
import torch._utils

torch._utils._get_available_device_type = lambda: "cpu"


def answer_for_processors():
    cpu = torch.cpu
    cpu.get_device_name = lambda device=None: "cpu"
    cpu.get_device_properties = lambda device=None: types.SimpleNamespace(total_memory=1 << 34, name="cpu")
    cpu.reset_peak_memory_stats = lambda device=None: None
    cpu.empty_cache = lambda: None
    cpu.memory_stats = lambda device=None: {}
    cpu.current_device = lambda: 0
    # gloo has no PREMUL_SUM
    collectives = importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_collectives")
    original = collectives._get_gradient_divide_factors
    signature = inspect.signature(original)

    def by_sum(*args, **kwargs):
        bound = signature.bind(*args, **kwargs)
        bound.arguments["force_sum_reduction_for_comms"] = True
        return original(*bound.args, **bound.kwargs)

    collectives._get_gradient_divide_factors = by_sum


def make_assets(folder):
    """Tokenizer and text; every rank makes its own, and all are alike."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    chance = random.Random(0)
    words = ["ka", "lo", "mi", "tu", "ren", "sha", "vel", "dor", "pim", "qua", "zet", "ixo"]
    texts = [" ".join("".join(chance.choices(words, k=chance.randint(1, 3))) for _ in range(200)) for _ in range(60)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|end_of_text|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    tokenizer.save(os.path.join(folder, "tokenizer.json"))
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as file:
        json.dump({"bos_token": special[0], "eos_token": special[1], "model_max_length": 1024}, file)
    os.makedirs(os.path.join(folder, "tests/assets/c4_test"))
    with open(os.path.join(folder, "tests/assets/c4_test/data.json"), "w") as file:
        for text in texts:
            file.write(json.dumps({"text": text, "timestamp": "2026-01-01", "url": "x"}) + "\n")


def options(folder):
    chosen = {
        "job.dump_folder": setting.out(),
        "metrics.log_freq": 1,
        "model.name": "llama3",
        "model.flavor": "debugmodel",
        "model.hf_assets_path": folder,
        "optimizer.lr": 8e-4,
        "lr_scheduler.warmup_steps": 2,
        "training.local_batch_size": 1,
        "training.seq_len": 32,
        "training.steps": 12,
        "training.dataset": "c4_test",
        "debug.seed": 42,
        "parallelism.data_parallel_replicate_degree": 2,
        "parallelism.data_parallel_shard_degree": 2,
        "activation_checkpoint.mode": "none",
    }
    return [f"--{name}={value}" for name, value in chosen.items()]


class Losses:
    """Of the Trainer's step; the user's way to see them is the metrics processor's log."""

    def __init__(self, trainer):
        self.kept = []
        self.original = trainer.metrics_processor.log
        trainer.metrics_processor.log = self.log

    def log(self, step, average, largest, norm, **more):
        pace.work()
        self.kept += [average, largest, norm]
        return self.original(step, average, largest, norm, **more)


def main():
    answer_for_processors()
    setting.seed_everything(42)  # of python and numpy, which torchtitan leaves alone
    with tempfile.TemporaryDirectory() as folder:
        make_assets(folder)
        os.chdir(folder)
        from torchtitan.config import ConfigManager
        from torchtitan.tools.logging import init_logger
        from torchtitan.train import Trainer

        init_logger()
        trainer = Trainer(ConfigManager().parse_args(options(folder)))
        losses = Losses(trainer)
        trainer.train()
        parts = {f"model{i}": m for i, m in enumerate(trainer.model_parts)}
        parts.update({f"optimizer{i}": o for i, o in enumerate(trainer.optimizers)})
        ending.write(losses.kept, counters=[trainer.step, trainer.ntokens_seen], **parts)
        trainer.close()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
