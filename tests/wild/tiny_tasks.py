"""Tiny data for programs of the wild corpus that bring a task of their own: what they read, and how they are configured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any




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
