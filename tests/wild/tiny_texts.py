"""Tiny data for programs of the wild corpus that learn from texts and from what is said."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
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
                {
                    "docid": f"{start + 10 * number + n}",
                    "title": text(2, start + 7 * number + n),
                    "text": text(12, start + 10 * number + n),
                }
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
        "data": {**loader, "num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "paths": ["train.npy"],
                 "instance_filter": {"repetition_max_period": 13, "repetition_min_period": 1, "repetition_max_count": 32}},
    }  # fmt: skip
    (folder / "tiny.yaml").write_text(yaml.safe_dump(options))


def pendulum_run(folder: Path) -> None:
    """Make rl_games' settings for a pendulum, with statistics that its ranks share and a rate that adapts itself."""
    import yaml

    text = (folder / "rl_games" / "configs" / "ppo_pendulum_torch.yaml").read_text()
    options = yaml.safe_load(text)
    options["params"]["seed"] = 42
    options["params"]["config"].update(
        multi_gpu=True, num_actors=4, horizon_length=32, minibatch_size=64, mini_epochs=2, max_epochs=7, normalize_input=True,
        normalize_value=True, save_frequency=2, save_best_after=2, print_stats=True, torch_compile=False,
    )  # fmt: skip
    (folder / "tiny.yaml").write_text(yaml.safe_dump(options))


def speech_run(folder: Path) -> None:
    """Make short sounds with what is said in them, and wenet's settings for a tiny conformer."""
    import soundfile
    import yaml

    draw = np.random.default_rng(53)
    letters = "abcdefgh"
    for name in ("sounds", "out"):
        (folder / name).mkdir()
    for part, count in (("train", 50), ("validation", 8)):
        rows = []
        for number in range(count):
            place = folder / "sounds" / f"{part}{number:02}.wav"
            soundfile.write(place, draw.normal(0, 0.1, int(draw.integers(9600, 19200))).astype(np.float32), 16000)
            said = "".join(draw.choice(list(letters), 4))
            rows.append(json.dumps({"key": place.stem, "wav": f"sounds/{place.name}", "txt": said}))
        (folder / f"{part}.list").write_text("\n".join(rows) + "\n")
    symbols = ["<blank>", "<unk>", *letters, "<sos/eos>"]
    (folder / "symbols.txt").write_text("".join(f"{symbol} {number}\n" for number, symbol in enumerate(symbols)))
    options = yaml.safe_load((folder / "examples" / "aishell" / "s0" / "conf" / "train_conformer.yaml").read_text())
    options["encoder_conf"].update(output_size=32, attention_heads=2, linear_units=64, num_blocks=2)
    options["decoder_conf"].update(attention_heads=2, linear_units=64, num_blocks=1)
    options["tokenizer_conf"].update(symbol_table_path="symbols.txt")
    options["tokenizer_conf"]["special_tokens"] = {"<blank>": 0, "<unk>": 1, "<sos>": 10, "<eos>": 10}
    for name in ("cmvn", "cmvn_conf"):
        del options[name]
    options["dataset_conf"].update(speed_perturb=False, batch_conf={"batch_type": "static", "batch_size": 2})
    options["dataset_conf"]["fbank_conf"]["num_mel_bins"] = 24
    options["dataset_conf"]["spec_aug_conf"].update(max_t=10, max_f=4)
    options.update(accum_grad=2, max_epoch=4, log_interval=2, scheduler_conf={"warmup_steps": 8})
    (folder / "tiny.yaml").write_text(yaml.safe_dump(options))


LOGGER = """import json
import time


class Verbosity:
    OFF, DEFAULT, VERBOSE = -1, 0, 1


class Backend:
    def __init__(self, verbosity):
        self._log_level = verbosity


class StdOutBackend:
    def __init__(self, verbosity, step_format=str, prefix_format=None):
        self.step_format = step_format

    def log(self, step, data):
        print(self.step_format(step), data, flush=True)


class JSONStreamBackend:
    def __init__(self, verbosity, filename):
        self.stream = open(filename, "w")

    def log(self, step, data):
        self.stream.write(json.dumps([step, data], default=str) + chr(10))


backends = []


def init(backends):
    globals()["backends"] = backends


def metadata(name, content):
    pass


def log(step, data, verbosity=0):
    for backend in backends:
        backend.log(*([time.time(), 0.0] if isinstance(backend, Backend) else []), step, data)


def flush():
    for backend in backends:
        if isinstance(backend, JSONStreamBackend):
            backend.stream.flush()
"""


def nvidia_logger(folder: Path) -> None:
    """Make the small part of NVIDIA's logger that its examples call: no registry has it."""
    (folder / "dllogger.py").write_text(LOGGER)


def ratings_run(folder: Path) -> None:
    """Make what users liked, as NCF reads it."""
    import torch
    import yaml

    draw = torch.Generator().manual_seed(54)
    users, items, series = 40, 60, 20
    liked = torch.stack([torch.arange(users).repeat(8), torch.randint(0, items, (users * 8,), generator=draw)], 1)
    shown = torch.stack(
        [torch.arange(users).repeat_interleave(series), torch.randint(0, items, (users * series,), generator=draw)], 1
    )
    first = (torch.arange(users * series) % series == 0).float()[:, None]
    (folder / "ratings").mkdir()
    for part, pair, label in (("train", liked, torch.ones(len(liked), 1)), ("test", shown, first)):
        torch.save(pair, folder / "ratings" / f"{part}_data_0.pt")
        torch.save(label, folder / "ratings" / f"{part}_data_1.pt")
    known = yaml.safe_load((folder / "data" / "ml-20m" / "feature_spec_template.yaml").read_text())
    known["feature_spec"]["user"]["cardinality"] = users
    known["feature_spec"]["item"]["cardinality"] = items
    known["metadata"]["test_samples_per_series"] = series
    (folder / "ratings" / "feature_spec.yaml").write_text(yaml.safe_dump(known))


def chat_run(folder: Path) -> None:
    """Make a chat model of some thousand parameters, whose tokenizer has marks for turns, and talks to tune it to."""
    import tiny_data
    import torch
    from tokenizers import pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM

    marks = {
        "unk_token": "<|unk|>",
        "pad_token": "<|endoftext|>",
        "bos_token": "<|im_start|>",
        "eos_token": "<|im_end|>",
    }
    tokenizer = tiny_data._tokenizer(marks)
    parts = [
        pre_tokenizers.Split(" ", "removed"),
        pre_tokenizers.Split("\n", "isolated"),
        pre_tokenizers.Split(".", "isolated"),
    ]
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
    torch.manual_seed(55)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=96, **sizes))
    for part in (model, tokenizer):
        part.save_pretrained(folder / "chat")
    for name, count, start in (("talks", 96, 0), ("talks_kept", 16, 5000)):
        rows = []
        for number in range(start, start + count):
            turns = [("user", tiny_data.text(5, number)), ("assistant", tiny_data.text(6 + number % 4, number + 900))]
            rows.append({"id": f"{number}", "conversations": [{"from": who, "value": said} for who, said in turns]})
        (folder / f"{name}.json").write_text(json.dumps(rows))


def robot_run(folder: Path) -> None:
    """Make what an arm saw and did in eight episodes, in lerobot's own form, and settings for a tiny policy (ACT)."""
    import sys

    sys.path.insert(0, str(folder / "src"))
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    draw = np.random.default_rng(56)
    shapes = {"observation.state": 4, "observation.environment_state": 6, "action": 4}
    features = {
        name: {"dtype": "float32", "shape": (size,), "names": [f"{place}" for place in range(size)]}
        for name, size in shapes.items()
    }
    kept = LeRobotDataset.create("tiny/arm", fps=10, features=features, root=folder / "arm", use_videos=False)
    for _ in range(8):
        for _ in range(24):
            frame = {name: draw.normal(size=size).astype(np.float32) for name, size in shapes.items()}
            kept.add_frame({**frame, "task": "move"})
        kept.save_episode()
    kept.finalize()


def lingua_run(folder: Path) -> None:
    """Make two sources of texts in chunks, and lingua's settings for a tiny model."""
    import yaml
    from tiny_data import text

    for number, source in enumerate(("books", "letters")):
        (folder / "shuffled" / source).mkdir(parents=True)
        for chunk in range(2):
            rows = [json.dumps({"text": text(30, 1000 * number + 100 * chunk + n)}) for n in range(40)]
            (folder / "shuffled" / source / f"{source}.chunk.{chunk:02}.jsonl").write_text("\n".join(rows) + "\n")
    options = {
        "name": "tiny", "dump_dir": "out", "steps": 24, "seed": 777, "grad_acc_steps": 2, "gc_collect_freq": 8,
        "optim": {"lr": 3e-3, "warmup": 4, "lr_min_ratio": 1e-6, "clip": 1.0},
        "distributed": {"fsdp_type": "full_shard", "compile": False, "model_dtype": "fp32", "dp_replicate": 2, "tp_size": 1},
        "model": {"dim": 32, "n_layers": 2, "n_heads": 2},
        "data": {"root_dir": "shuffled", "sources": {"books": 2.0, "letters": 1.0}, "batch_size": 2, "prefetch_size": 8,
                 "seq_len": 32, "n_views": 2, "load_async": True, "tokenizer": {"name": "bytes"}},
        "checkpoint": {"dump": {"every": 12, "keep": 1}, "eval": {"every": 12, "keep": 1}}, "logging": {"freq": 1},
    }  # fmt: skip
    (folder / "tiny.yaml").write_text(yaml.safe_dump(options))


def text_parts(folder: Path) -> None:
    """Make lines of words for training, for validation and for a test."""
    from tiny_data import text

    (folder / "text").mkdir()
    for part, count, start in (("train", 100, 0), ("valid", 20, 200), ("test", 20, 300)):
        lines = [f" {text(15, start + number)} \n" for number in range(count)]
        (folder / "text" / f"{part}.txt").write_text("".join(lines))


def question_files(folder: Path) -> None:
    """Make two files of questions with texts that answer them and others, and an encoder for both."""
    from tiny_data import text, tiny_bert

    tiny_bert(folder)
    for name, count, start in (("books", 64, 0), ("letters", 40, 30000)):
        rows = []
        for number in range(start, start + count):
            answers, others = (
                [text(12, 9 * number + n) for n in range(2)],
                [text(12, 9 * number + n) for n in range(2, 7)],
            )
            rows.append(json.dumps({"query": text(5, number), "pos": answers, "neg": others}))
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")


def dion_run(folder: Path) -> None:
    """Make token numbers for training and for validation in llm.c's form, and dion's settings for a tiny model."""
    import yaml

    draw = np.random.default_rng(31)
    (folder / "tokens").mkdir()
    for name in ("train_0", "train_1", "val_0"):
        header = np.zeros(256, dtype=np.int32)
        header[:3] = 20240520, 1, 900
        tokens = draw.integers(0, 64, 900, dtype=np.uint16)
        (folder / "tokens" / f"fineweb_{name}.bin").write_bytes(header.tobytes() + tokens.tobytes())
    options = {
        "data_dir": "tokens",
        "checkpoint_dir": "out",
        "checkpoint_freq": 16,
        "optimizer": "dion",
        "scalar_opt": "lion",
        "ortho_fraction": 0.5,
        "lr": 0.01,
        "mu": 0.95,
        "replicate_mesh_grad_sync": True,
        "model_dim": 32,
        "n_layer": 2,
        "n_head": 2,
        "num_iterations": 30,
        "batch_size": 8,
        "device_batch_size": 2,
        "sequence_length": 32,
        "val_loss_every": 10,
        "val_tokens": 512,
        "no_wandb": True,
        "no_compile": True,
        "no_triton": True,
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(options))


def _llama_settings(folder: Path, vocabulary: int) -> None:
    """Write the settings of a tiny LLaMA as those of GaLore and ReLoRA have them."""
    options = {
        "architectures": ["LLaMAForCausalLM"],
        "bos_token_id": 0,
        "eos_token_id": 1,
        "hidden_act": "silu",
        "hidden_size": 32,
        "intermediate_size": 64,
        "initializer_range": 0.02,
        "max_sequence_length": 64,
        "model_type": "llama",
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "pad_token_id": -1,
        "rms_norm_eps": 1e-06,
        "use_cache": True,
        "vocab_size": vocabulary,
    }
    (folder / "llama").mkdir()
    (folder / "llama" / "config.json").write_text(json.dumps(options))


def c4_run(folder: Path) -> None:
    """Make texts in C4's form, a tokenizer in T5's place, and the settings of a tiny LLaMA."""
    from tiny_data import _tokenizer, text

    tokenizer = _tokenizer({"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>"})
    tokenizer.save_pretrained(folder / "t5-base")
    _llama_settings(folder, len(tokenizer))
    (folder / "c4").mkdir()
    for name, count, start in (("train-0", 220, 0), ("train-1", 220, 1000), ("validation", 32, 2000)):
        rows = [
            {"text": text(20 + number % 9, start + number), "timestamp": "2019", "url": f"local/{number}"}
            for number in range(count)
        ]
        (folder / "c4" / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def relora_run(folder: Path) -> None:
    """Make token numbers as ReLoRA keeps them, a tokenizer, and the settings of a tiny LLaMA."""
    from datasets import Dataset, DatasetDict
    from tiny_data import _tokenizer

    tokenizer = _tokenizer({"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>"})
    tokenizer.save_pretrained(folder / "tokenizer")
    _llama_settings(folder, len(tokenizer))
    draw = np.random.default_rng(32)
    parts = {
        name: Dataset.from_dict({"input_ids": draw.integers(0, len(tokenizer), (count, 32)).tolist()})
        for name, count in (("train", 440), ("validation", 32))
    }
    DatasetDict(parts).save_to_disk(folder / "tokens")
    (folder / "tokens" / "args.json").write_text(json.dumps({"tokenizer": "tokenizer", "sequence_length": 32}))


def xlm_run(folder: Path) -> None:
    """Make texts of two languages of the same words, in the form that XLM's own script gives them."""
    from tiny_data import WORDS, text

    (folder / "data").mkdir()
    words = [shape for word in WORDS for shape in (word, f"{word}.")]
    (folder / "vocabulary").write_text("".join(f"{word} {100 - number}\n" for number, word in enumerate(words)))
    for language, start in (("en", 0), ("fr", 5000)):
        for part, count in (("train", 100), ("valid", 10), ("test", 10)):
            start += 1000
            lines = [text(12, start + number) + "\n" for number in range(count)]
            (folder / "data" / f"{part}.{language}").write_text("".join(lines))
            command = [sys.executable, "preprocess.py", "vocabulary", f"data/{part}.{language}"]
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)


def fid_run(folder: Path) -> None:
    """Make questions with answers and passages, and a T5 of some thousand parameters with its tokenizer."""
    import torch
    from tiny_data import WORDS, text
    from transformers import T5Config, T5ForConditionalGeneration, T5Tokenizer

    pieces = ["<pad>", "</s>", "<unk>", "\u2581", ".", ":", "\u2581question", "\u2581title", "\u2581context"]
    pieces += [f"\u2581{word}" for word in WORDS] + list("abcdefghijklmnopqrstuvwxyz")
    tokenizer = T5Tokenizer(vocab=[(piece, -float(number)) for number, piece in enumerate(pieces)], extra_ids=0)
    torch.manual_seed(33)
    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
    )
    for part in (T5ForConditionalGeneration(config), tokenizer):
        part.save_pretrained(folder / "t5-tiny")
    for name, count, start in (("train", 96, 0), ("test", 16, 3000)):
        rows = []
        for number in range(start, start + count):
            passages = [{"title": text(2, 9 * number + n), "text": text(12, 9 * number + n)} for n in range(3)]
            answers = [text(2, number), text(3, number)]
            rows.append({"id": number, "question": text(5, number), "answers": answers, "ctxs": passages})
        (folder / f"{name}.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def preferred_talks(folder: Path) -> None:
    """Make pairs of talks, of which the first is preferred."""
    import tiny_data

    rows = []
    for number in range(96):
        asked = {"role": "user", "content": tiny_data.text(4, number)}
        kinds = (("chosen", 2000), ("rejected", 4000))
        talks = {
            kind: [asked, {"role": "assistant", "content": tiny_data.text(5, number + seed)}] for kind, seed in kinds
        }
        rows.append(talks)
    (folder / "preferred.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def asked_passages(folder: Path) -> None:
    """Make questions with a passage that answers each and two others, as DPR reads them, and an encoder."""
    import tiny_data

    tiny_data.tiny_bert(folder)
    for part, count, start in (("asked", 96, 0), ("asked_kept", 16, 5000)):
        rows = []
        for number in range(start, start + count):
            kinds = (("positive_ctxs", 1, 0), ("negative_ctxs", 1, 100), ("hard_negative_ctxs", 2, 200))
            found = {
                kind: [
                    {"title": tiny_data.text(2, number + seed + n), "text": tiny_data.text(9, number + seed + n)}
                    for n in range(many)
                ]
                for kind, many, seed in kinds
            }
            rows.append({"question": tiny_data.text(5, number), "answers": [], **found})
        (folder / f"{part}.json").write_text(json.dumps(rows))
