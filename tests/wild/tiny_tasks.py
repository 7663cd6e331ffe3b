"""Tiny data for programs of the wild corpus that bring a task of their own: what they read, and how they are configured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def _views_run(folder: Path, name: str, content: dict[str, Any]) -> None:
    from tiny_data import image_folder

    image_folder(folder)
    (folder / "out").mkdir()
    content["logging"] = {"folder": "out", "write_tag": "tiny"}
    content["optimization"] = {
        "epochs": 2, "warmup": 1, "start_lr": 0.0002, "lr": 0.001, "final_lr": 0.0001, "weight_decay": 0.04,
        "final_weight_decay": 0.4, "ema": [0.9, 1.0], "ipe_scale": 1.0, "clip_grad": 3.0,
    }  # fmt: skip
    (folder / name).write_text(json.dumps(content))


def ijepa_run(folder: Path) -> None:
    """Make pictures in folders, and the configuration with which I-JEPA reads them."""
    meta = {
        "model_name": "vit_tiny", "pred_depth": 2, "pred_emb_dim": 24, "use_bfloat16": False, "load_checkpoint": False,
        "read_checkpoint": None, "copy_data": False,
    }  # fmt: skip
    data = {
        "batch_size": 4, "crop_size": 32, "crop_scale": [0.3, 1.0], "root_path": "", "image_folder": "images/",
        "num_workers": 1, "pin_mem": False, "color_jitter_strength": 0.0, "use_color_distortion": False,
        "use_gaussian_blur": False, "use_horizontal_flip": False,
    }  # fmt: skip
    mask = {
        "patch_size": 4, "num_enc_masks": 1, "num_pred_masks": 4, "min_keep": 4, "allow_overlap": False,
        "aspect_ratio": [0.75, 1.5], "enc_mask_scale": [0.85, 1.0], "pred_mask_scale": [0.15, 0.2],
    }  # fmt: skip
    _views_run(folder, "tiny.yaml", {"meta": meta, "data": data, "mask": mask})


def msn_run(folder: Path) -> None:
    """Make pictures in folders, and the configuration with which MSN reads them."""
    meta = {
        "model_name": "deit_tiny", "bottleneck": 1, "hidden_dim": 32, "output_dim": 16, "use_bn": True,
        "use_fp16": False, "use_pred_head": False, "drop_path_rate": 0.0, "load_checkpoint": False,
        "read_checkpoint": None, "copy_data": False,
    }  # fmt: skip
    data = {
        "color_jitter_strength": 0.5, "pin_mem": False, "num_workers": 1, "root_path": "", "image_folder": "images/",
        "label_smoothing": 0.0, "patch_drop": 0.15, "rand_size": 32, "focal_size": 16, "rand_views": 1,
        "focal_views": 2,
    }  # fmt: skip
    criterion = {
        "ent_weight": 0.0, "final_sharpen": 0.25, "me_max": True, "memax_weight": 1.0, "num_proto": 32,
        "start_sharpen": 0.25, "temperature": 0.1, "batch_size": 4, "use_ent": True, "use_sinkhorn": True,
    }  # fmt: skip
    _views_run(folder, "tiny.yaml", {"meta": meta, "data": data, "criterion": criterion})


def blip_run(folder: Path) -> None:
    """Make captioned pictures, a tokenizer as it would be downloaded, and the settings with which BLIP learns to retrieve."""
    from PIL import Image
    from tiny_data import WORDS, text

    draw = np.random.default_rng(42)
    (folder / "pictures").mkdir()
    (folder / "annotation").mkdir()
    for part, first, count in (("train", 0, 48), ("val", 48, 8), ("test", 56, 8)):
        rows: list[dict[str, Any]] = []
        for number in range(first, first + count):
            name = f"pictures/{number:02}.png"
            Image.fromarray(draw.integers(0, 255, (36, 36, 3), dtype=np.uint8)).save(folder / name)
            several = [text(5 + n, 3 * number + n) for n in range(2)]
            if part == "train":
                rows.extend({"image": name, "image_id": f"coco_{number}", "caption": caption} for caption in several)
            else:
                rows.append({"image": name, "caption": several})
        (folder / "annotation" / f"coco_karpathy_{part}.json").write_text(json.dumps(rows))
    (folder / "bert-base-uncased").mkdir()
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (folder / "bert-base-uncased" / "vocab.txt").write_text("\n".join(vocabulary) + "\n")
    described = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 64}
    (folder / "bert-base-uncased" / "tokenizer_config.json").write_text(json.dumps(described))
    (folder / "bert-base-uncased" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    place = folder / "configs" / "med_config.json"
    sizes = {
        "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 64, "num_attention_heads": 2,
        "num_hidden_layers": 2, "vocab_size": len(vocabulary) + 2, "encoder_width": 32,
    }  # fmt: skip
    place.write_text(json.dumps({**json.loads(place.read_text()), **sizes}))
    settings = {
        "image_root": "", "ann_root": "annotation", "dataset": "coco", "pretrained": "", "vit": "base",
        "batch_size_train": 4, "batch_size_test": 4, "vit_grad_ckpt": False, "vit_ckpt_layer": 0, "init_lr": 0.001,
        "image_size": 32, "queue_size": 64, "alpha": 0.4, "k_test": 4, "negative_all_rank": True, "weight_decay": 0.05,
        "min_lr": 0, "max_epoch": 2,
    }  # fmt: skip
    (folder / "tiny.yaml").write_text(json.dumps(settings))


def nanovlm_run(folder: Path) -> None:
    """Make talks about pictures in four files, and the tokenizer of a language model."""
    from datasets import Dataset, Features, Image, List, Value
    from PIL.Image import fromarray
    from tiny_data import _tokenizer, text

    draw = np.random.default_rng(43)
    (folder / "talks").mkdir()
    kinds = Features(
        {"images": List(Image()), "texts": List({"user": Value("string"), "assistant": Value("string")})},
    )
    for part in range(4):
        rows = []
        for number in range(60 * part, 60 * part + 60):
            picture = fromarray(draw.integers(0, 255, (24 + number % 3 * 8, 32, 3), dtype=np.uint8))
            turns = [
                {"user": text(4 + n, 2 * number + n), "assistant": text(6 + number % 5, 900 + number)}
                for n in range(1 + number % 2)
            ]
            rows.append({"images": [picture], "texts": turns})
        Dataset.from_list(rows, features=kinds).to_parquet(folder / "talks" / f"train-{part:05}-of-00004.parquet")
    specials = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    _tokenizer(specials).save_pretrained(folder / "tokenizer")


def yolov7_boxes(folder: Path) -> None:
    """Make pictures with boxes, and the description that YOLOv7 reads."""
    from tiny_sets import boxes

    boxes(folder)
    description = {"train": "boxes/images/train", "val": "boxes/images/val", "nc": 3, "names": ["a", "b", "c"]}
    (folder / "boxes.yaml").write_text(json.dumps(description))


def yolov9_run(folder: Path) -> None:
    """Make pictures with boxes, and YOLOv9's smallest model with a fourth of its channels and one block for three."""
    import yaml
    from tiny_sets import boxes

    def smaller(value: Any) -> Any:
        if isinstance(value, list):
            return [smaller(part) for part in value]
        return max(value // 4, 8) if isinstance(value, int) and value > 15 else value

    boxes(folder)
    model = yaml.safe_load((folder / "models" / "detect" / "yolov9-t.yaml").read_text())
    for part in ("backbone", "head"):
        model[part] = [[*row[:3], smaller(row[3])] for row in model[part]]
        for row in model[part]:
            if row[2] == "RepNCSPELAN4":
                row[3][-1] = 1
    (folder / "tiny.yaml").write_text(yaml.safe_dump(model))


def videos(folder: Path) -> None:
    """Make short videos, and the list that names each with a label."""
    import cv2

    draw = np.random.default_rng(44)
    (folder / "videos").mkdir()
    rows = []
    for number in range(48):
        place = folder / "videos" / f"{number:02}.mp4"
        out = cv2.VideoWriter(str(place), cv2.VideoWriter_fourcc(*"mp4v"), 24, (64, 64))
        for _ in range(40):
            out.write(draw.integers(0, 255, (8, 8, 3), dtype=np.uint8).repeat(8, 0).repeat(8, 1))
        out.release()
        rows.append(f"videos/{place.name} {number % 4}")
    (folder / "videos.txt").write_text("\n".join(rows) + "\n")


def arcface_run(folder: Path) -> None:
    """Make pictures in folders, and the configuration with which ArcFace reads them."""
    from tiny_data import image_folder

    image_folder(folder)
    values = {
        "network": "r18", "embedding_size": 16, "sample_rate": 0.5, "batch_size": 4, "lr": 0.05, "verbose": 8,
        "frequent": 1, "num_workers": 1, "num_classes": 24, "num_image": 96, "num_epoch": 2, "warmup_epoch": 1,
        "val_targets": [], "rec": "images/train", "output": "out", "save_all_states": True, "gradient_acc": 1,
    }  # fmt: skip
    text = f"from easydict import EasyDict as edict\n\nconfig = edict({values!r})\n"
    (folder / "configs" / "tiny.py").write_text(text)


def k_diffusion_run(folder: Path) -> None:
    """Make pictures in folders, and the configuration of a tiny transformer that k-diffusion trains with them."""
    from tiny_data import image_folder

    image_folder(folder)
    model = {
        "type": "image_transformer_v2", "input_channels": 3, "input_size": [16, 16], "patch_size": [2, 2],
        "depths": [1, 1], "widths": [32, 32], "mapping_width": 32, "loss_config": "karras",
        "self_attns": [{"type": "shifted-window", "d_head": 16, "window_size": 4}, {"type": "global", "d_head": 16}],
        "loss_weighting": "soft-min-snr", "dropout_rate": [0.05, 0.05], "augment_prob": 0.12, "sigma_data": 0.5,
        "sigma_min": 0.01, "sigma_max": 80, "sigma_sample_density": {"type": "cosine-interpolated"},
    }  # fmt: skip
    content = {
        "model": model,
        "dataset": {
            "type": "imagefolder-class",
            "location": "images/train",
            "num_classes": 6,
            "cond_dropout_rate": 0.1,
        },
        "optimizer": {"type": "adamw", "lr": 0.0005, "betas": [0.9, 0.95], "eps": 0.00000001, "weight_decay": 0.0001},
        "lr_sched": {"type": "constant", "warmup": 0.5},
        "ema_sched": {"type": "inverse", "power": 0.6667, "max_value": 0.9999},
    }
    (folder / "tiny.json").write_text(json.dumps(content))


def rtdetr_run(folder: Path) -> None:
    """Make pictures with boxes in COCO's form, and RT-DETR's smallest configuration with smaller sizes."""
    from tiny_data import coco

    coco(folder)
    resized: list[dict[str, Any]] = [
        {"type": "Resize", "size": [64, 64]},
        {"type": "SanitizeBoundingBoxes", "min_size": 1},
        {"type": "ConvertPILImage", "dtype": "float32", "scale": True},
        {"type": "ConvertBoxes", "fmt": "cxcywh", "normalize": True},
    ]
    changed: list[dict[str, Any]] = [
        {"type": "RandomPhotometricDistort", "p": 0.5},
        {"type": "RandomZoomOut", "fill": 0},
        {"type": "RandomIoUCrop", "p": 0.8},
        {"type": "SanitizeBoundingBoxes", "min_size": 1},
        {"type": "RandomHorizontalFlip"},
    ]

    def data(part: str, operations: list[dict[str, Any]], **further: Any) -> dict[str, Any]:
        files = {
            "img_folder": f"coco/{part}2017/", "ann_file": f"coco/annotations/instances_{part}2017.json",
            "transforms": {"ops": operations, **further},
        }  # fmt: skip
        return {"dataset": files, "total_batch_size": 4, "num_workers": 1}

    stopped = {"epoch": 2, "name": "stop_epoch", "ops": [operation["type"] for operation in changed[:3]]}
    content = {
        "__include__": ["./rtdetrv2_r18vd_120e_coco.yml"],
        "output_dir": "out", "num_classes": 4, "remap_mscoco_category": False, "eval_spatial_size": [64, 64],
        "epoches": 4, "print_freq": 1, "sync_bn": False, "use_amp": False, "ema": {"decay": 0.9, "warmups": 4},
        "lr_warmup_scheduler": {"type": "LinearWarmup", "warmup_duration": 4},
        "lr_scheduler": {"type": "MultiStepLR", "milestones": [2], "gamma": 0.1},
        "PResNet": {"pretrained": False},
        "HybridEncoder": {"in_channels": [16, 32, 64], "hidden_dim": 32, "nhead": 2, "dim_feedforward": 32},
        "RTDETRTransformerv2": {
            "feat_channels": [32, 32, 32], "hidden_dim": 32, "nhead": 2, "dim_feedforward": 32, "num_layers": 2,
            "num_queries": 10, "num_denoising": 6,
        },
        "RTDETRPostProcessor": {"num_top_queries": 10},
        "train_dataloader": {
            **data("train", changed + resized, policy=stopped), "collate_fn": {"scales": [32, 64, 96], "stop_epoch": 2},
        },
        "val_dataloader": data("val", [resized[0], resized[2]]),
    }  # fmt: skip
    (folder / "configs" / "rtdetrv2" / "tiny.yml").write_text(json.dumps(content))


def rcg_run(folder: Path) -> None:
    """Make pictures in folders, an encoder of them, and the settings of a diffusion model of what it says of a picture."""
    import sys

    import torch
    from tiny_data import image_folder

    image_folder(folder)
    sys.path.insert(0, str(folder))
    from pretrained_enc.models_pretrained_enc import mocov3_vit_base

    torch.set_num_threads(1)
    torch.manual_seed(45)
    weights = {f"module.base_encoder.{name}": value for name, value in mocov3_vit_base(16).state_dict().items()}
    torch.save({"state_dict": weights}, folder / "encoder.pth")
    network = {
        "in_channels": 16, "time_embed_dim": 16, "model_channels": 32, "bottleneck_channels": 32, "out_channels": 16,
        "num_res_blocks": 2,
    }  # fmt: skip
    encoder = {"pretrained_enc_arch": "mocov3_vit_base", "pretrained_enc_path": "encoder.pth", "proj_dim": 16}
    condition = {"embed_dim": 16, "n_classes": 1, "key": "class_label"}
    params = {
        "linear_start": 0.0015, "linear_end": 0.0195, "num_timesteps_cond": 1, "log_every_t": 20, "timesteps": 50,
        "first_stage_key": "image", "cond_stage_key": "class_label", "image_size": 1, "channels": 16,
        "cond_stage_trainable": True, "conditioning_key": "crossattn", "parameterization": "x0",
        "unet_config": {"target": "rdm.modules.diffusionmodules.latentmlp.SimpleMLP", "params": network},
        "pretrained_enc_config": {"params": {**encoder, "pretrained_enc_withproj": True}},
        "cond_stage_config": {"target": "rdm.modules.encoders.modules.ClassEmbedder", "params": condition},
    }  # fmt: skip
    content = {"model": {"target": "rdm.models.diffusion.ddpm.RDM", "params": params}}
    (folder / "tiny.yaml").write_text(json.dumps(content))


def vjepa_run(folder: Path) -> None:
    """Make short videos, and the configuration with which V-JEPA reads them."""
    videos(folder)
    (folder / "videos.csv").write_text((folder / "videos.txt").read_text())
    (folder / "out").mkdir()

    def blocks(count: int, scale: float) -> dict[str, Any]:
        return {
            "aspect_ratio": [0.75, 1.5], "num_blocks": count, "spatial_scale": [scale, scale], "temporal_scale": [1.0, 1.0],
            "max_temporal_keep": 1.0, "max_keep": None,
        }  # fmt: skip

    content = {
        "app": "vjepa",
        "data": {
            "dataset_type": "VideoDataset", "datasets": ["videos.csv"], "decode_one_clip": True, "batch_size": 2,
            "num_clips": 1, "num_frames": 8, "tubelet_size": 2, "sampling_rate": 2, "crop_size": 32, "patch_size": 8,
            "pin_mem": False, "num_workers": 1, "filter_short_videos": False, "clip_duration": None,
        },
        "data_aug": {
            "auto_augment": False, "motion_shift": False, "random_resize_aspect_ratio": [0.75, 1.35],
            "random_resize_scale": [0.3, 1.0], "reprob": 0.0,
        },
        "logging": {"folder": "out", "write_tag": "tiny"},
        "loss": {"loss_exp": 1.0, "reg_coeff": 0.0},
        "mask": [blocks(8, 0.15), blocks(2, 0.7)],
        "meta": {
            "load_checkpoint": False, "read_checkpoint": None, "seed": 234, "eval_freq": 100, "use_sdpa": False,
            "dtype": "float32",
        },
        "model": {
            "model_name": "vit_tiny", "pred_depth": 2, "pred_embed_dim": 24, "uniform_power": True, "use_mask_tokens": True,
            "zero_init_mask_tokens": True,
        },
        "optimization": {
            "ipe": 9, "ipe_scale": 1.25, "clip_grad": 10.0, "weight_decay": 0.04, "final_weight_decay": 0.4, "epochs": 4,
            "warmup": 1,
            "start_lr": 0.0002, "lr": 0.001, "final_lr": 0.0001, "ema": [0.9, 1.0],
        },
    }  # fmt: skip
    (folder / "tiny.yaml").write_text(json.dumps(content))


def paws_run(folder: Path) -> None:
    """Make CIFAR-10's files, the list of pictures that have a label, and the configuration with which PAWS reads them."""
    from tiny_sets import cifar10

    cifar10(folder)
    (folder / "out").mkdir()
    (folder / "cifar10_subsets" / "spc.4000_split.1.txt").write_text("".join(f"{number}\n" for number in range(80)))
    content = {
        "criterion": {
            "classes_per_batch": 10, "me_max": True, "sharpen": 0.25, "supervised_imgs_per_class": 1,
            "supervised_views": 2, "temperature": 0.1, "unsupervised_batch_size": 10,
        },
        "data": {
            "color_jitter_strength": 0.5, "data_seed": 1, "dataset": "cifar10", "image_folder": "data/",
            "label_smoothing": 0.1, "multicrop": 2, "normalize": True, "root_path": "", "subset_path": "cifar10_subsets/",
            "unique_classes_per_rank": False, "unlabeled_frac": 0.92,
        },
        "logging": {"folder": "out", "write_tag": "tiny"},
        "meta": {
            "copy_data": False, "device": "cpu", "load_checkpoint": False, "model_name": "wide_resnet28w2",
            "output_dim": 16, "read_checkpoint": None, "use_fp16": False, "use_pred_head": True,
        },
        "optimization": {
            "epochs": 3, "final_lr": 0.004, "lr": 0.4, "momentum": 0.9, "nesterov": False, "start_lr": 0.1, "warmup": 1,
            "weight_decay": 1.0e-6,
        },
    }  # fmt: skip
    (folder / "tiny.yaml").write_text(json.dumps(content))


def beit_run(folder: Path) -> None:
    """Make pictures in folders, and weights of the tokenizer that says which visual words BEiT is to guess."""
    import sys

    import torch
    from tiny_data import image_folder

    image_folder(folder)
    sys.path.insert(0, str(folder))
    from modeling_discrete_vae import DiscreteVAE

    torch.manual_seed(46)
    model = DiscreteVAE(image_size=32, num_layers=3, num_tokens=64, codebook_dim=16, hidden_dim=16)
    with torch.no_grad():
        for part in model.parameters():
            part.mul_(3.0 if part.dim() > 1 else 0.0)
    (folder / "tokenizer").mkdir()
    torch.save({"weights": model.state_dict()}, folder / "tokenizer" / "pytorch_model.bin")


def volumes(folder: Path) -> None:
    """Make volumes with a label for each place, named as those of KiTS19 are; the script's list says which are for evaluation."""
    draw = np.random.default_rng(47)
    (folder / "volumes").mkdir()
    held = {line.strip() for line in (folder / "evaluation_cases.txt").read_text().splitlines()}
    numbers = [f"{number:05}" for number in range(210)]
    for number in [n for n in numbers if n in held][:4] + [n for n in numbers if n not in held][:32]:
        label = np.zeros((1, 24, 24, 24), dtype=np.uint8)
        for kind in (1, 2):
            z, y, x = draw.integers(0, 14, 3)
            label[0, z : z + 9, y : y + 9, x : x + 9] = kind
        drawn = draw.normal(size=label.shape) + label
        np.save(folder / "volumes" / f"case_{number}_x.npy", drawn.astype(np.float32))
        np.save(folder / "volumes" / f"case_{number}_y.npy", label)
