"""What torchtitan needs where there is no CUDA and no download: torch that answers for a processor, a tokenizer, a text."""

import importlib
import inspect
import json
import os
import random
import types

import setting
import torch
import torch._utils


def answer_for_processors():
    """Before torchtitan is imported, unless there is a device. Of torch alone: torchtitan is as it comes."""
    if setting.DEVICE != "cpu":
        return
    torch._utils._get_available_device_type = lambda: "cpu"
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


CHOSEN = {
    "metrics.log_freq": 1,
    "model.flavor": "debugmodel",
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
