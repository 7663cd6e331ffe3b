"""Tiny data for programs of the wild corpus that learn from texts and from what is said."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np


def packed_tokens(folder: Path) -> None:
    """Make chunks of token numbers below 128 in lit-gpt's packed form, of two sources and for validation."""
    draw = np.random.default_rng(51)
    (folder / "packed").mkdir()
    for prefix in ("train_slim", "train_star", "validation"):
        for number in range(16):
            tokens = draw.integers(0, 128, 330, dtype=np.uint16)
            head = b"LITPKDS" + struct.pack("<QBQ", 1, 8, len(tokens))
            (folder / "packed" / f"{prefix}_{number:010}.bin").write_bytes(head + tokens.tobytes())


def passages(folder: Path) -> None:
    """Make questions with passages that answer them and others that do not, and an encoder for both."""
    from tiny_data import text, tiny_bert

    tiny_bert(folder)
    rows = []
    for number in range(96):
        groups = {
            f"{kind}_passages": [
                {"docid": f"{start + 10 * number + n}", "title": text(2, start + 7 * number + n), "text": text(12, start + 10 * number + n)}
                for n in range(count)
            ]
            for kind, start, count in (("positive", 1000, 2), ("negative", 5000, 5))
        }
        rows.append(json.dumps({"query_id": f"{number}", "query": text(5, number), **groups}))
    (folder / "passages.jsonl").write_text("\n".join(rows) + "\n")


def olmo_run(folder: Path) -> None:
    """Make token numbers for training and for validation, a tokenizer, and OLMo's settings for a tiny model."""
    import yaml
    from tokenizers import Tokenizer, models

    draw = np.random.default_rng(52)
    words = {f"w{n}": n for n in range(128)}
    Tokenizer(models.WordLevel(words, "w127")).save(str(folder / "words.json"))
    for part, count in (("train", 3200), ("validation", 640)):
        draw.integers(2, 127, count, dtype=np.uint16).tofile(folder / f"{part}.npy")
    model = {
        "d_model": 32, "n_heads": 2, "n_layers": 2, "mlp_ratio": 2, "rope": True, "weight_tying": False, "include_bias": False,
        "block_type": "sequential", "layer_norm_type": "rms", "activation_type": "swiglu", "attention_dropout": 0.0,
        "residual_dropout": 0.1, "embedding_dropout": 0.1, "max_sequence_length": 32, "vocab_size": 128, "embedding_size": 128,
        "eos_token_id": 0, "pad_token_id": 1, "init_device": "cpu", "init_fn": "normal", "init_std": 0.02, "init_cutoff_factor": 3,
    }  # fmt: skip
    loader = {"pad_direction": "right", "drop_last": True, "pin_memory": False, "timeout": 0}
    validation = {**loader, "num_workers": 0, "datasets": {"small-validation": ["validation.npy"]}}
    options = {
        "run_name": "tiny", "seed": 6198, "model": model, "ddp": {"grad_sync_mode": "batch", "find_unused_params": False},
        "optimizer": {"name": "adamw", "learning_rate": 3e-3, "weight_decay": 0.1, "eps": 1e-8, "decay_norm_and_bias": True,
                      "decay_embeddings": True, "betas": [0.9, 0.95], "metrics_log_interval": 4},
        "scheduler": {"name": "cosine_with_warmup", "t_warmup": 4, "alpha_f": 0.1, "warmup_min_lr": 0},
        "tokenizer": {"identifier": "words.json", "truncate_direction": "right"},
        "save_folder": "out", "save_overwrite": True, "save_interval_unsharded": 8, "save_num_unsharded_checkpoints_to_keep": 2,
        "max_duration": "2ep", "global_train_batch_size": 8, "device_train_microbatch_size": 2, "precision": "amp_bf16",
        "distributed_strategy": "ddp", "gen1_gc_interval": 1, "max_grad_norm": 1.0, "softmax_auxiliary_loss": True,
        "speed_monitor": {"window_size": 20}, "console_log_interval": 1, "eval_interval": 8, "eval_subset_num_batches": -1,
        "device_eval_batch_size": 4, "evaluators": [{"label": "small", "data": validation}],
        "data": {**loader, "num_workers": 1, "prefetch_factor": 2, "persistent_workers": True, "paths": ["train.npy"],
                 "instance_filter": {"repetition_max_period": 13, "repetition_min_period": 1, "repetition_max_count": 32}},
    }  # fmt: skip
    (folder / "tiny.yaml").write_text(yaml.safe_dump(options))
