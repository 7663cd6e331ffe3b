"""Tiny data for programs of the wild corpus that predict fields and series: classes of pixels, motion, weather, speech."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def series_table(folder: Path) -> None:
    """Make a table of three series by the hour."""
    draw = np.random.default_rng(61)
    hours = np.arange(260)
    waves = [np.sin(hours / (3 + n)) + 0.1 * draw.standard_normal(len(hours)) for n in range(3)]
    rows = [
        f"2020-01-{1 + hour // 24:02} {hour % 24:02}:00:00," + ",".join(f"{wave[hour]:.4f}" for wave in waves)
        for hour in hours
    ]
    (folder / "series.csv").write_text("\n".join(["date,a,b,c", *rows]) + "\n")


def unimatch_run(folder: Path) -> None:
    """Make pictures with classes of pixels, the lists of those that have some and of all, and UniMatch's settings."""
    import torch
    from tiny_runs import voc_masks

    voc_masks(folder)
    place = folder / "datasets" / "voc" / "VOC2012" / "ImageSets" / "Segmentation"
    pairs = {
        part: [
            f"JPEGImages/{name}.jpg SegmentationClass/{name}.png"
            for name in (place / f"{part}.txt").read_text().split()
        ]
        for part in ("train", "val")
    }
    lists = {"labeled.txt": pairs["train"][:12], "unlabeled.txt": pairs["train"], "splits/pascal/val.txt": pairs["val"]}
    for name, lines in lists.items():
        (folder / name).write_text("\n".join(lines) + "\n")
    (folder / "pretrained").mkdir()
    torch.save({}, folder / "pretrained" / "resnet50.pth")
    settings = {
        "dataset": "pascal", "nclass": 21, "crop_size": 33, "data_root": "datasets/voc/VOC2012", "epochs": 3,
        "batch_size": 3, "lr": 0.005, "lr_multi": 2.0, "criterion": {"name": "CELoss", "kwargs": {"ignore_index": 255}},
        "conf_thresh": 0.1, "model": "deeplabv3plus", "backbone": "resnet50",
        "replace_stride_with_dilation": [False, False, True], "dilations": [1, 2, 3],
    }  # fmt: skip
    (folder / "tiny.yaml").write_text(json.dumps(settings))


def bisenet_run(folder: Path) -> None:
    """Make pictures with classes of pixels, the lists of them, and BiSeNet's settings."""
    from tiny_runs import voc_masks

    voc_masks(folder)
    place = folder / "datasets" / "voc" / "VOC2012"
    for part in ("train", "val"):
        names = (place / "ImageSets" / "Segmentation" / f"{part}.txt").read_text().split()
        lines = [f"JPEGImages/{name}.jpg,SegmentationClass/{name}.png" for name in names]
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n")
    settings: dict[str, Any] = {
        "model_type": "bisenetv2", "n_cats": 21, "num_aux_heads": 4, "lr_start": 0.01, "weight_decay": 5e-4,
        "warmup_iters": 6, "max_iter": 28, "dataset": "CustomerDataset", "im_root": str(place.relative_to(folder)),
        "train_im_anns": "train.txt", "val_im_anns": "val.txt", "scales": [0.75, 2.0], "cropsize": [64, 64],
        "eval_crop": [32, 32], "eval_scales": [0.5, 1.0], "ims_per_gpu": 4, "eval_ims_per_gpu": 2, "use_fp16": False,
        "use_sync_bn": False, "respth": "out",
    }  # fmt: skip
    (folder / "out").mkdir()  # ranks that look for it at one time would both make it
    (folder / "tiny.py").write_text(f"cfg = {settings!r}\n")


def weather_run(folder: Path) -> None:
    """Make three years of 32 fields, one of them for validation, what is known of their values, and FourCastNet's settings."""
    import h5py

    draw = np.random.default_rng(64)
    for place in ("train/2015", "train/2016", "test/2017"):
        name = folder / "weather" / f"{place}.h5"
        name.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(name, "w") as file:
            file["fields"] = draw.standard_normal((32, 3, 17, 32), dtype=np.float32).cumsum(axis=0)
    np.save(folder / "weather" / "means.npy", np.zeros((1, 3, 1, 1), np.float32))
    np.save(folder / "weather" / "stds.npy", np.full((1, 3, 1, 1), 4, np.float32))
    settings = {
        "loss": "l2", "lr": 0.002, "scheduler": "ReduceLROnPlateau", "num_data_workers": 1, "dt": 1, "n_history": 0,
        "prediction_type": "iterative", "add_grid": False, "N_grid_channels": 0, "gridtype": "sinusoidal", "roll": False,
        "max_epochs": 4, "batch_size": 8, "num_blocks": 4, "nettype": "afno", "patch_size": 4, "target": "default",
        "in_channels": [0, 1, 2], "out_channels": [0, 1, 2], "normalization": "zscore", "train_data_path": "weather/train",
        "valid_data_path": "weather/test", "exp_dir": "out", "global_means_path": "weather/means.npy",
        "global_stds_path": "weather/stds.npy", "orography": False, "log_to_screen": True, "log_to_wandb": False,
        "save_checkpoint": True, "enable_nhwc": False, "optimizer_type": "Adam", "crop_size_x": "None",
        "crop_size_y": "None", "two_step_training": False, "add_noise": False, "noise_std": 0,
    }  # fmt: skip
    (folder / "tiny.yaml").write_text(json.dumps({"tiny": settings}))


def flying_chairs(folder: Path) -> None:
    """Make pairs of pictures, the second moved by some pixels, how they moved, and which of them are for training."""
    from PIL import Image

    draw = np.random.default_rng(65)
    place = folder / "datasets" / "FlyingChairs_release" / "data"
    place.mkdir(parents=True)
    parts = [1] * 96 + [2] * 4
    for number in range(len(parts)):
        right, down = draw.integers(-4, 5, 2)
        coarse = np.kron(draw.integers(0, 255, (20, 20, 3)), np.ones((4, 4, 1))).astype(np.uint8)
        for name, picture in (("img1", coarse), ("img2", np.roll(coarse, (down, right), (0, 1)))):
            Image.fromarray(picture).save(place / f"{number:05}_{name}.ppm")
        flow = np.broadcast_to(np.array([right, down], np.float32), (80, 80, 2))
        head = np.array([202021.25], np.float32).tobytes() + np.array([80, 80], np.int32).tobytes()
        (place / f"{number:05}_flow.flo").write_bytes(head + flow.tobytes())
    (folder / "data" / "chairs_split.txt").write_text("\n".join(map(str, parts)) + "\n")


CONTRIB = """import ast
import logging
from types import SimpleNamespace


class HParams:
    def __init__(self, **values):
        self.__dict__.update(values)

    def parse(self, text):
        for pair in text.split(","):
            name, value = pair.split("=")
            known = type(getattr(self, name))
            setattr(self, name, value if known is str else known(ast.literal_eval(value)))

    def values(self):
        return dict(self.__dict__)


contrib = SimpleNamespace(training=SimpleNamespace(HParams=HParams))
"""


def spoken_lines(folder: Path) -> None:
    """Make short sounds with what is said in them, and of TensorFlow 1 the part that reads Tacotron's settings."""
    from scipy.io import wavfile
    from tiny_data import text

    draw = np.random.default_rng(66)
    (folder / "sounds").mkdir()
    for part, count in (("train", 96), ("validation", 8)):
        lines = []
        for number in range(count):
            length = int(draw.integers(640, 960))
            wave = 8000 * np.sin(np.arange(length) * draw.uniform(0.1, 1)) + 500 * draw.standard_normal(length)
            wavfile.write(folder / "sounds" / f"{part}_{number:02}.wav", 4000, wave.astype(np.int16))
            lines.append(f"sounds/{part}_{number:02}.wav|{text(3 + number % 3, number)}")
        (folder / f"{part}.txt").write_text("\n".join(lines) + "\n")
    (folder / "tensorflow1.py").write_text(CONTRIB)


def captions_lmdb(folder: Path) -> None:
    """Make captioned pictures in LMDB files, and configurations of two small encoders under names that are known."""
    import base64
    import io
    import pickle

    import lmdb
    from PIL import Image
    from tiny_data import text

    draw = np.random.default_rng(67)
    for part, count in (("train", 96), ("valid", 16)):
        stores = {}
        for name in ("imgs", "pairs"):
            (folder / "captions" / part / name).mkdir(parents=True)
            stores[name] = lmdb.open(str(folder / "captions" / part / name), map_size=1 << 24)
        with stores["imgs"].begin(write=True) as pictures, stores["pairs"].begin(write=True) as pairs:
            for number in range(count):
                kept = io.BytesIO()
                Image.fromarray(draw.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(kept, "PNG")
                pictures.put(str(number).encode(), base64.urlsafe_b64encode(kept.getvalue()))
                pairs.put(str(number).encode(), pickle.dumps((number, number, text(5 + number % 4, number))))
            pictures.put(b"num_images", str(count).encode())
            pairs.put(b"num_samples", str(count).encode())
        for store in stores.values():
            store.close()
    sizes: dict[str, dict[str, Any]] = {
        "ViT-B-16": {"embed_dim": 16, "image_resolution": 32, "vision_layers": 2, "vision_width": 64},
        "RBT3-chinese": {
            "text_hidden_size": 32, "text_intermediate_size": 64, "text_max_position_embeddings": 64,
            "text_num_attention_heads": 2, "text_num_hidden_layers": 2,
        },
    }  # fmt: skip
    for name, content in sizes.items():
        place = folder / "cn_clip" / "clip" / "model_configs" / f"{name}.json"
        place.write_text(json.dumps({**json.loads(place.read_text()), **content}))


def wave_features(folder: Path) -> None:
    """Make sounds with their features in HDF5 files, and Parallel WaveGAN's settings for two small networks."""
    import h5py
    import yaml

    draw = np.random.default_rng(68)
    hop, bands = 16, 8
    (folder / "out").mkdir()
    for part, count in (("train", 48), ("dev", 12)):
        (folder / "dump" / part).mkdir(parents=True)
        for number in range(count):
            frames = int(draw.integers(32, 40))
            wave = 0.5 * np.sin(np.arange(frames * hop) * draw.uniform(0.1, 1)) + 0.01 * draw.standard_normal(
                frames * hop
            )
            with h5py.File(folder / "dump" / part / f"{number:02}.h5", "w") as kept:
                kept["wave"] = wave.astype(np.float32)
                kept["feats"] = draw.standard_normal((frames, bands)).astype(np.float32)
    settings = yaml.safe_load((folder / "egs" / "ljspeech" / "voc1" / "conf" / "parallel_wavegan.v1.yaml").read_text())
    sizes = {
        "layers": 4,
        "stacks": 2,
        "residual_channels": 8,
        "gate_channels": 16,
        "skip_channels": 8,
        "aux_channels": bands,
    }
    settings["generator_params"].update(sizes, upsample_params={"upsample_scales": [4, 4]})
    settings["discriminator_params"].update(layers=3, conv_channels=8)
    settings["stft_loss_params"].update(fft_sizes=[64, 128, 32], hop_sizes=[10, 20, 5], win_lengths=[40, 80, 16])
    settings["generator_optimizer_params"]["lr"] = settings["discriminator_optimizer_params"]["lr"] = 0.001
    settings["generator_scheduler_params"]["step_size"] = settings["discriminator_scheduler_params"]["step_size"] = 10
    settings.update(
        sampling_rate=4000, hop_size=hop, num_mels=bands, batch_max_steps=256, pin_memory=False, num_workers=1,
        discriminator_train_start_steps=8, train_max_steps=28, save_interval_steps=12, eval_interval_steps=10,
        log_interval_steps=2, num_save_intermediate_results=2,
    )  # fmt: skip
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))


def porous_fields(folder: Path) -> None:
    """Make fields of two permeabilities, and what flows through them, at two resolutions, as Darcy's archive has them."""
    import torch

    draw = np.random.default_rng(68)
    (folder / "porous").mkdir()
    for part, count in (("train", 96), ("test", 16)):
        for size in (16, 32):
            coarse = draw.standard_normal((count, 4, 4)).repeat(size // 4, axis=1).repeat(size // 4, axis=2)
            field = torch.tensor(coarse > 0)
            flow = torch.tensor(coarse.cumsum(axis=1).cumsum(axis=2) / size**2, dtype=torch.float32)
            torch.save({"x": field, "y": flow}, folder / "porous" / f"darcy_{part}_{size}.pt")


def power_series(folder: Path) -> None:
    """Make eight series of power by the hour in three parts, as NVIDIA's forecasting example bins them, and what scaled them."""
    import pickle

    from sklearn.preprocessing import StandardScaler

    draw = np.random.default_rng(69)
    (folder / "power").mkdir()
    for part, hours in (("train", 47), ("valid", 31), ("test", 27)):
        groups = []
        for number in range(8):
            time = np.arange(hours)
            power = np.sin(time / (2 + number)) + 0.1 * draw.standard_normal(hours)
            columns = [
                np.full(hours, number),
                time,
                power,
                time % 24 / 24,
                time // 24 % 7 / 7,
                time / 48,
                np.full(hours, number),
            ]
            groups.append(np.stack(columns, axis=1).astype(np.float32))
        (folder / "power" / f"{part}.bin").write_bytes(pickle.dumps(groups))
    scalers = {number: StandardScaler().fit(draw.normal(5 + number, 2, (20, 1))) for number in range(8)}
    (folder / "power" / "tgt_scalers.bin").write_bytes(pickle.dumps(scalers))
    (folder / "power" / "cat_encodings.bin").write_bytes(pickle.dumps({}))
