"""Tiny data for programs of the wild corpus that bring catalogues, options and folders of their own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def _picture(draw: np.random.Generator, place: Path, size: int = 32) -> None:
    """Draw a picture, and make the folders that it lies in."""
    from PIL import Image

    place.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(draw.integers(0, 255, (size, size, 3), dtype=np.uint8)).save(place)


def many_captions(folder: Path) -> None:
    """Make pictures with three captions each, as COCO has them, and SLIP's catalogue of classes and of texts about them."""
    from tiny_data import image_folder, text

    draw = np.random.default_rng(31)
    annotations = []
    for number in range(64):
        _picture(draw, folder / "coco" / "train2017" / f"{number:012}.jpg")
        for caption in range(3):
            annotations.append({"image_id": number, "caption": text(4, 3 * number + caption)})
    (folder / "captions.json").write_text(json.dumps({"annotations": annotations}))
    image_folder(folder)
    known: dict[str, Any] = {
        "dataset_catalog": {"path": "images", "type": "imagefolder", "train": "train", "test": "val"},
        "labels": [text(1, label) for label in range(6)],
        "templates": ["a photo of a {}.", "a small {}."],
    }
    for name, content in known.items():
        (folder / f"{name}.json").write_text(json.dumps({"imagenet": content}))


def instructions(folder: Path) -> None:
    """Make questions with their answers, every third with something that it is about."""
    from tiny_data import text

    rows = [
        {"instruction": text(4, n), "input": text(3, n + 300) if n % 3 == 2 else "", "output": text(3 + n % 4, n + 600)}
        for n in range(160)
    ]
    (folder / "instructions.json").write_text(json.dumps(rows))


def flat_latents(folder: Path) -> None:
    """Make latents of 80 pictures with a label each, in files of their own, and the autoencoder that would be downloaded."""
    import torch
    from diffusers import AutoencoderKL

    torch.manual_seed(32)
    model = AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4)
    model.save_pretrained(folder / "stabilityai" / "sd-vae-ft-ema")
    draw = np.random.default_rng(32)
    for kind in ("features", "labels"):
        (folder / "features" / f"imagenet256_{kind}").mkdir(parents=True)
    for number in range(80):
        drawn = draw.normal(size=(1, 4, 32, 32)).astype(np.float32)
        np.save(folder / "features" / "imagenet256_features" / f"{number}.npy", drawn)
        np.save(folder / "features" / "imagenet256_labels" / f"{number}.npy", np.array([number % 6]))


def packed_latents(folder: Path) -> None:
    """Make latents of pictures and of their mirror images in two files, and LightningDiT's settings for a small network."""
    import torch
    import yaml
    from safetensors.numpy import save_file

    draw = np.random.default_rng(39)
    (folder / "latents").mkdir()
    shape = (1, 8, 1, 1)
    torch.save({"mean": torch.zeros(shape), "std": torch.ones(shape)}, folder / "latents" / "latents_stats.pt")
    for number in range(2):
        drawn = draw.normal(size=(48, 8, 4, 4)).astype(np.float32)
        content = {"latents": drawn, "latents_flip": drawn[..., ::-1].copy(), "labels": np.arange(48) % 6}
        save_file(content, folder / "latents" / f"latents_rank00_shard{number:03}.safetensors")
    parts = {"use_qknorm": False, "use_swiglu": True, "use_rope": True, "use_rmsnorm": True, "wo_shift": False}
    settings = {
        "data": {"data_path": "latents", "image_size": 64, "num_classes": 6, "num_workers": 1, "latent_norm": True},
        "vae": {"downsample_ratio": 16},
        "model": {"model_type": "LightningDiT-B/1", "in_chans": 8, **parts},
        "train": {
            "max_steps": 27, "global_batch_size": 16, "global_seed": 0, "output_dir": "out", "exp_name": "tiny",
            "log_every": 1, "ckpt_every": 8,
        },
        "optimizer": {"lr": 0.002, "beta2": 0.95, "max_grad_norm": 1.0},
        "transport": {
            "path_type": "Linear", "prediction": "velocity", "loss_weight": None, "sample_eps": None,
            "train_eps": None, "use_cosine_loss": True, "use_lognorm": True,
        },
    }  # fmt: skip
    settings["data"]["latent_multiplier"] = 1.0
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))


def kair_run(folder: Path) -> None:
    """Make large pictures, of which KAIR makes small ones by itself, and its options for a tiny network."""
    draw = np.random.default_rng(33)
    for part, count in (("train", 48), ("test", 3)):
        for number in range(count):
            _picture(draw, folder / "large" / part / f"{number:02}.png", size=40)
    kinds = {"dataset_type": "sr", "dataroot_L": None}
    loader = {"dataloader_shuffle": True, "dataloader_num_workers": 0, "dataloader_batch_size": 8}
    options: dict[str, Any] = {
        "task": "tiny", "model": "plain", "gpu_ids": [0, 1], "dist": True, "scale": 4, "n_channels": 3,
        "path": {"root": "superresolution", "pretrained_netG": None, "pretrained_netE": None},
        "datasets": {
            "train": {"name": "train", "dataroot_H": "large/train", "H_size": 32, **kinds, **loader},
            "test": {"name": "test", "dataroot_H": "large/test", **kinds},
        },
        "netG": {
            "net_type": "msrresnet0", "in_nc": 3, "out_nc": 3, "nc": 8, "nb": 2, "act_mode": "R", "upsample_mode": "upconv",
            "init_type": "orthogonal", "init_bn_type": "uniform", "init_gain": 0.2,
        },
        "train": {
            "manual_seed": 3, "G_lossfn_type": "l1", "G_lossfn_weight": 1.0, "E_decay": 0.9, "G_optimizer_type": "adam",
            "G_optimizer_lr": 0.001, "G_optimizer_wd": 0, "G_optimizer_clipgrad": None, "G_optimizer_reuse": True,
            "G_scheduler_type": "MultiStepLR", "G_scheduler_milestones": [8, 16], "G_scheduler_gamma": 0.5,
            "G_regularizer_orthstep": None, "G_regularizer_clipstep": None, "G_param_strict": True, "E_param_strict": True,
            "checkpoint_test": 12, "checkpoint_save": 10, "checkpoint_print": 1,
        },
    }  # fmt: skip
    (folder / "tiny.json").write_text(json.dumps(options))


def voc_masks(folder: Path) -> None:
    """Make pictures with a class for each of their pixels, as PASCAL VOC has them; some pixels have none."""
    from PIL import Image

    draw = np.random.default_rng(34)
    place = folder / "datasets" / "voc" / "VOC2012"
    for name in ("SegmentationClass", "ImageSets/Segmentation"):
        (place / name).mkdir(parents=True)
    for part, count in (("train", 48), ("val", 16)):
        names = [f"{part}_{number:02}" for number in range(count)]
        (place / "ImageSets" / "Segmentation" / f"{part}.txt").write_text("\n".join(names) + "\n")
        for name in names:
            _picture(draw, place / "JPEGImages" / f"{name}.jpg", size=40)
            classes = np.kron(draw.integers(0, 21, (5, 5)), np.ones((8, 8))).astype(np.uint8)
            classes[:2] = 255
            Image.fromarray(classes).save(place / "SegmentationClass" / f"{name}.png")


def albef_run(folder: Path) -> None:
    """Make captioned pictures, a text encoder and a vision transformer as they would be downloaded, and ALBEF's settings."""
    import torch
    from safetensors.torch import load_file, save_file
    from tiny_data import text, tiny_masked_bert

    draw = np.random.default_rng(35)
    rows: list[dict[str, Any]] = []
    for number in range(64):
        _picture(draw, folder / "pictures" / f"{number:02}.jpg")
        several = [text(5, 2 * number), text(6, 2 * number + 1)]
        rows.append({"image": f"pictures/{number:02}.jpg", "caption": several if number % 2 else several[0]})
    (folder / "captions.json").write_text(json.dumps(rows))
    tiny_masked_bert(folder)
    vocabulary = json.loads((folder / "bert" / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "bert" / "vocab.txt").write_text("\n".join(sorted(vocabulary, key=vocabulary.get)) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / "bert" / name).unlink()
    stored = load_file(folder / "bert" / "model.safetensors")  # without the places, which BERT's own files have
    stored["bert.embeddings.position_ids"] = torch.arange(64).expand((1, -1)).contiguous()
    save_file(stored, folder / "bert" / "model.safetensors", {"format": "pt"})
    known = json.loads((folder / "bert" / "config.json").read_text())
    (folder / "bert.json").write_text(json.dumps({**known, "fusion_layer": 1, "encoder_width": 32}))
    torch.manual_seed(35)
    places = folder / "downloads" / "hub" / "checkpoints"
    places.mkdir(parents=True)
    weights = {"cls_token": torch.randn(1, 1, 32), "pos_embed": torch.randn(1, 5, 32)}
    torch.save({"model": weights}, places / "deit_base_patch16_224-b5f2ef4d.pth")
    settings: dict[str, Any] = {
        "train_file": ["captions.json"], "bert_config": "bert.json", "image_res": 32, "vision_width": 32, "embed_dim": 16,
        "batch_size": 4, "temp": 0.07, "mlm_probability": 0.15, "queue_size": 64, "momentum": 0.9, "alpha": 0.4,
        "optimizer": {"opt": "adamW", "lr": 0.001, "weight_decay": 0.02},
        "schedular": {
            "sched": "cosine", "lr": 0.001, "epochs": 3, "min_lr": 0.0005, "decay_rate": 1, "warmup_lr": 0.0001,
            "warmup_epochs": 1, "cooldown_epochs": 0,
        },
    }  # fmt: skip
    (folder / "tiny.yaml").write_text(json.dumps(settings))


def conversations(folder: Path) -> None:
    """Make talks of one and two turns, and a language model whose tokenizer has a token for each letter."""
    import string

    import torch
    from tiny_data import text
    from transformers import LlamaConfig, LlamaForCausalLM, LlamaTokenizer

    letters = ["<unk>", "<s>", "</s>", "\u2581", *string.ascii_letters, *string.digits, *string.punctuation]
    tokenizer = LlamaTokenizer(vocab={letter: n for n, letter in enumerate(letters)}, merges=[], legacy=True)
    torch.manual_seed(36)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(letters), max_position_embeddings=384, **sizes))
    for part in (model, tokenizer):
        part.save_pretrained(folder / "model")
    rows = []
    for number in range(96):
        turns = [
            {"from": who, "value": text(3, 10 * number + place)}
            for place, who in enumerate(("human", "gpt") * (1 + number % 2))
        ]
        rows.append({"id": str(number), "conversations": turns})
    (folder / "conversations.json").write_text(json.dumps(rows))
    (folder / "evaluation.json").write_text(json.dumps(rows[:16]))


def token_archives(folder: Path) -> None:
    """Make archives of token numbers with the list of them, more for validation, and a small model's settings."""
    import io
    import tarfile

    draw = np.random.default_rng(37)
    (folder / "shards").mkdir()
    listed = []
    for name, count in (*((f"{shard:08}", 16) for shard in range(12)), ("val", 16)):
        with tarfile.open(folder / "shards" / f"{name}.tar", "w") as archive:
            for number in range(count):
                content = json.dumps(draw.integers(0, 64, 33).tolist()).encode()
                member = tarfile.TarInfo(f"{name}_{number:04}.json")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
        if name != "val":
            listed.append(json.dumps({"shard": name, "num_sequences": count}))
    (folder / "shards" / "manifest.jsonl").write_text("\n".join(listed) + "\n")
    sizes = {"hidden_dim": 32, "n_layers": 2, "n_heads": 2, "seq_len": 32, "vocab_size": 64}
    (folder / "tiny.json").write_text(json.dumps({**sizes, "post_embed_norm": False, "weight_tying": False}))


def picture_statistics(folder: Path) -> None:
    """Make pictures that are named after their classes, and what is known of all of them: mean and covariance of three features."""
    draw = np.random.default_rng(38)
    for number in range(96):
        label = f"n{number % 6:04}"
        _picture(draw, folder / "images" / "train" / label / f"{label}_{number}.png", size=16)
    place = folder / "assets" / "fid_stats"
    place.mkdir(parents=True, exist_ok=True)
    np.savez(place / "fid_stats_imagenet16_guided_diffusion.npz", mu=np.full(3, 0.4), sigma=np.eye(3) * 0.01)


def torchtune_run(folder: Path) -> None:
    """Make instructions, a language model, a sentencepiece model, and the settings of a torchtune recipe that trains it."""
    from tiny_data import tiny_llama
    from tiny_sets import lines

    tiny_llama(folder)
    lines(folder)
    instructions(folder)
    known = json.loads((folder / "model" / "config.json").read_text())
    questions = {
        "_component_": "torchtune.datasets.alpaca_dataset",
        "source": "json",
        "data_files": "instructions.json",
    }
    settings: dict[str, Any] = {
        "output_dir": "out", "device": "cpu", "dtype": "fp32", "seed": 5, "epochs": 3, "max_steps_per_epoch": None,
        "tokenizer": {
            "_component_": "torchtune.models.llama2.llama2_tokenizer", "path": "lines/tokens.model", "max_seq_len": 128,
        },
        "dataset": {**questions, "split": "train"}, "dataset_val": {**questions, "split": "train[90%:]"},
        "shuffle": True, "batch_size": 4, "batch_size_val": 4, "run_val_every_n_steps": 10,
        "model": {
            "_component_": "torchtune.models.llama2.llama2", "vocab_size": known["vocab_size"], "num_layers": 2,
            "num_heads": 2, "num_kv_heads": 2, "embed_dim": 16, "max_seq_len": 128, "intermediate_dim": 32,
        },
        "checkpointer": {
            "_component_": "torchtune.training.FullModelHFCheckpointer", "checkpoint_dir": "model",
            "checkpoint_files": ["model.safetensors"], "recipe_checkpoint": None, "output_dir": "out", "model_type": "LLAMA2",
        },
        "resume_from_checkpoint": False,
        "optimizer": {"_component_": "torch.optim.AdamW", "lr": 0.003},
        "lr_scheduler": {
            "_component_": "torchtune.training.lr_schedulers.get_cosine_schedule_with_warmup", "num_warmup_steps": 4,
        },
        "loss": {"_component_": "torchtune.modules.loss.LinearCrossEntropyLoss"},
        "gradient_accumulation_steps": 2, "clip_grad_norm": 1.0, "compile": False, "optimizer_in_bwd": False,
        "enable_activation_checkpointing": False, "enable_activation_offloading": False,
        "metric_logger": {"_component_": "torchtune.training.metric_logging.DiskLogger", "log_dir": "logs"},
        "log_every_n_steps": 1, "log_peak_memory_stats": False, "log_level": "INFO",
    }  # fmt: skip
    (folder / "tiny.yaml").write_text(json.dumps(settings))


def letter_numbers(folder: Path) -> None:
    """Make numbers of letters for training and for a test, where llm-baselines keeps those of Shakespeare's."""
    import string

    from tiny_data import text

    letters = sorted(set(string.ascii_letters + string.digits + string.punctuation + " \n"))
    place = folder / "src" / "data" / "datasets" / "shakespeare"
    place.mkdir(parents=True)
    for part, count in (("train", 1600), ("test", 400)):
        numbers = [letters.index(letter) for letter in text(count, seed=count)]
        np.array(numbers, dtype=np.uint16).tofile(place / f"{part}.npy")


def question_pairs(folder: Path) -> None:
    """Make pairs of a text and its answer, a tokenizer, and the settings of a tiny encoder, as DiffuSeq reads them."""
    from tiny_data import text, tiny_bert

    tiny_bert(folder)
    (folder / "pairs").mkdir()
    (folder / "out").mkdir()
    for part, count, start in (("train", 96, 0), ("valid", 24, 4000)):
        rows = [
            json.dumps({"src": text(5 + number % 3, number), "trg": text(6, number + 900)})
            for number in range(start, start + count)
        ]
        (folder / "pairs" / f"{part}.jsonl").write_text("\n".join(rows) + "\n")
