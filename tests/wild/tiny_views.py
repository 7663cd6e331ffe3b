"""Tiny data for programs of the wild corpus that look at pictures: two views, a teacher, pictures to clean, depths."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def picture_twins(folder: Path) -> None:
    """Make pairs of pictures of one thing, the second moved by some pixels, and the list of them."""
    from PIL import Image

    draw = np.random.default_rng(71)
    place = folder / "data" / "ARKitScenes_crops"
    (place / "scenes").mkdir(parents=True)
    names = [f"scenes/{number:04}" for number in range(96)]
    for name in names:
        coarse = np.kron(draw.integers(0, 255, (10, 10, 3)), np.ones((4, 4, 1))).astype(np.uint8)
        for view, picture in ((1, coarse), (2, np.roll(coarse, (2, -3), (0, 1)))):
            Image.fromarray(picture).save(place / f"{name}_{view}.jpg")
    (place / "listing.txt").write_text("\n".join(["# scenes", *names]) + "\n")


def taught_pictures(folder: Path) -> None:
    """Make pictures in folders, and the weights of a network that tells classes of them."""
    import timm
    import torch
    from tiny_data import image_folder

    image_folder(folder)
    torch.manual_seed(72)
    torch.save({"model": timm.create_model("test_resnet", num_classes=1000).state_dict()}, folder / "teacher.pth")


def noisy_pictures(folder: Path) -> None:
    """Make pictures and noisy ones of them, and NAFNet's options for a small network that cleans them."""
    from PIL import Image

    draw = np.random.default_rng(73)
    for part, count in (("train", 32), ("val", 4)):
        for kind in ("clean", "noisy"):
            (folder / "pairs" / part / kind).mkdir(parents=True)
        for number in range(count):
            clean = np.kron(draw.integers(40, 215, (6, 6, 3)), np.ones((8, 8, 1))).astype(np.uint8)
            noisy = clean + draw.integers(-30, 30, clean.shape)
            for kind, picture in (("clean", clean), ("noisy", noisy)):
                name = folder / "pairs" / part / kind / f"{number:02}.png"
                Image.fromarray(picture.astype(np.uint8)).save(name)

    def pairs(part: str, **further: Any) -> dict[str, Any]:
        place = {"dataroot_gt": f"pairs/{part}/clean", "dataroot_lq": f"pairs/{part}/noisy"}
        return {"name": part, "type": "PairedImageDataset", "io_backend": {"type": "disk"}, **place, **further}

    options = {
        "name": "tiny", "model_type": "ImageRestorationModel", "scale": 1, "num_gpu": 0, "manual_seed": 3,
        "datasets": {
            "train": pairs(
                "train", filename_tmpl="{}", gt_size=32, use_flip=True, use_rot=True, use_shuffle=True,
                num_worker_per_gpu=1, batch_size_per_gpu=4, dataset_enlarge_ratio=2, prefetch_mode=None,
            ),
            "val": pairs("val"),
        },
        "network_g": {
            "type": "NAFNet", "width": 8, "enc_blk_nums": [1, 1], "middle_blk_num": 1, "dec_blk_nums": [1, 1],
        },
        "path": {"pretrain_network_g": None, "strict_load_g": True, "resume_state": None},
        "train": {
            "optim_g": {"type": "AdamW", "lr": 0.002, "weight_decay": 0.0, "betas": [0.9, 0.9]}, "total_iter": 28,
            "scheduler": {"type": "TrueCosineAnnealingLR", "T_max": 28, "eta_min": 0.0001}, "warmup_iter": -1,
            "pixel_opt": {"type": "PSNRLoss", "loss_weight": 1, "reduction": "mean"},
        },
        "val": {
            "val_freq": 8, "save_img": True, "use_image": False,
            "metrics": {
                name: {"type": f"calculate_{name}", "crop_border": 0, "test_y_channel": False}
                for name in ("psnr", "ssim")
            },
        },
        "logger": {"print_freq": 1, "save_checkpoint_freq": 10, "use_tb_logger": True, "wandb": {"project": None}},
        "dist_params": {"backend": "gloo", "port": 29500},
    }  # fmt: skip
    (folder / "tiny.yml").write_text(json.dumps(options))


def measured_scenes(folder: Path) -> None:
    """Make pictures with the depth of each place, in centimetres for training and in parts of a metre for evaluation."""
    from PIL import Image

    draw = np.random.default_rng(74)
    (folder / "scenes").mkdir()
    for part, count, scale in (("vkitti2/train", 64, 100), ("kitti/val", 8, 256)):
        lines = []
        for number in range(count):
            depth = np.kron(draw.uniform(2, 40, (8, 10)), np.ones((8, 8)))
            picture = np.stack([depth * 6, 250 - depth * 5, draw.uniform(0, 250, depth.shape)], axis=2)
            names = [f"scenes/{part[0]}{number:03}_{kind}.png" for kind in ("picture", "depth")]
            for name, values in zip(names, (picture.astype(np.uint8), (depth * scale).astype(np.uint16))):
                Image.fromarray(values).save(folder / name)
            lines.append(" ".join(names))
        place = folder / "dataset" / "splits" / f"{part}.txt"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text("\n".join(lines) + "\n")


def animal_pictures(folder: Path) -> None:
    """Make pictures of three classes, and what is known of all of them: sums of twelve features and of their products."""
    import torch
    from PIL import Image

    draw = np.random.default_rng(75)
    features = []
    for label, name in enumerate(("cat", "dog", "wild")):
        place = folder / "data" / "afhq" / name
        place.mkdir(parents=True)
        for number in range(32):
            pixels = draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            pixels[:, :, label] //= 2
            Image.fromarray(pixels).save(place / f"{number}.png")
            features.append(pixels.reshape(2, 8, 2, 8, 3).mean((1, 3)).transpose(2, 0, 1).reshape(12) / 255)
    known = torch.tensor(np.stack(features))
    count = torch.tensor(len(features))
    sums = {"features_sum": known.sum(0), "features_cov_sum": known.T @ known, "features_num_samples": count}
    stats = {f"real_{name}": value for name, value in sums.items()}
    stats |= {f"fake_{name}": torch.zeros_like(value) for name, value in sums.items()}
    torch.save(stats, folder / "data" / "afhq_16_fid_stats.pth")


def seen_people(folder: Path) -> None:
    """Make pictures of people that three cameras saw, named as Market-1501 names them."""
    from PIL import Image

    draw = np.random.default_rng(76)
    parts = (
        ("bounding_box_train", range(1, 13), 8),
        ("query", range(20, 26), 1),
        ("bounding_box_test", range(20, 26), 3),
    )
    for part, people, count in parts:
        place = folder / "data" / "market1501" / part
        place.mkdir(parents=True)
        for person in people:
            looks = np.random.default_rng(person).integers(0, 255, (8, 4, 3))
            for number in range(count):
                noisy = np.kron(looks, np.ones((4, 4, 1))) * 0.8 + draw.integers(0, 50, (32, 16, 3))
                camera = 4 if part == "query" else number % 3 + 1
                Image.fromarray(noisy.astype(np.uint8)).save(place / f"{person:04}_c{camera}s1_{number:06}_00.jpg")


def three_kinds(folder: Path) -> None:
    """Make pictures, with the depth and the class of each place in pictures of their own, in folders of the same names."""
    from PIL import Image

    draw = np.random.default_rng(77)
    for label in range(4):
        for kind in ("rgb", "depth", "semseg"):
            (folder / "data" / kind / f"n{label:04}").mkdir(parents=True)
        for number in range(24):
            coarse = draw.integers(0, 133, (8, 8), dtype=np.uint8)
            classes = np.kron(coarse, np.ones((4, 4), dtype=np.uint8))
            colours = np.stack([classes, 255 - classes, classes // 2], 2)
            for kind, content in (("rgb", colours), ("depth", classes.astype(np.uint16) * 400), ("semseg", classes)):
                Image.fromarray(content).save(folder / "data" / kind / f"n{label:04}" / f"{number}.png")


def street_scenes(folder: Path) -> None:
    """Make pictures with a class for each place, the lists of them, and HRNet's settings for a small network."""
    import yaml
    from PIL import Image

    draw = np.random.default_rng(78)
    place = folder / "streets"
    place.mkdir()
    for part, count in (("train", 40), ("val", 8)):
        lines = []
        for number in range(count):
            coarse = draw.integers(0, 34, (6, 12), dtype=np.uint8)
            classes = np.kron(coarse, np.ones((8, 8), dtype=np.uint8))
            names = [f"{part}{number}.png", f"{part}{number}_classes.png"]
            Image.fromarray(np.stack([classes * 7] * 3, 2)).save(place / names[0])
            Image.fromarray(classes).save(place / names[1])
            lines.append(" ".join(names))
        (place / f"{part}.lst").write_text("\n".join(lines) + "\n")
    stages = {"FINAL_CONV_KERNEL": 1}
    for number, block in ((1, "BOTTLENECK"), (2, "BASIC"), (3, "BASIC"), (4, "BASIC")):
        sizes = [4 * 2**branch for branch in range(number)]
        blocks = {"NUM_BLOCKS": [1] * number, "NUM_CHANNELS": sizes, "BLOCK": block, "FUSE_METHOD": "SUM"}
        stages[f"STAGE{number}"] = {
            "NUM_MODULES": 1,
            "NUM_RANCHES" if number == 1 else "NUM_BRANCHES": number,
            **blocks,
        }
    training = {"IMAGE_SIZE": [64, 32], "BASE_SIZE": 96, "BATCH_SIZE_PER_GPU": 4, "END_EPOCH": 5, "RESUME": True}
    settings = {
        "GPUS": "(0,1)",
        "OUTPUT_DIR": "output",
        "LOG_DIR": "log",
        "WORKERS": 1,
        "PRINT_FREQ": 1,
        "DATASET": {"ROOT": "streets/", "TRAIN_SET": "train.lst", "TEST_SET": "val.lst", "NUM_CLASSES": 19},
        "MODEL": {"NAME": "seg_hrnet", "ALIGN_CORNERS": False, "EXTRA": stages},
        "LOSS": {"USE_OHEM": True, "OHEMTHRES": 0.9, "OHEMKEEP": 512},
        "TRAIN": {**training, "LR": 0.05, "WD": 5e-4, "IGNORE_LABEL": 255},
        "TEST": {"IMAGE_SIZE": [96, 48], "BASE_SIZE": 96},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))


def zipped_pictures(folder: Path) -> None:
    """Make pictures in archives, and the lists of them with the class of each, as Swin Transformer's loader reads them."""
    import zipfile

    from tiny_data import image_folder

    image_folder(folder)
    for part in ("train", "val"):
        names = sorted((folder / "images" / part).rglob("*.png"))
        with zipfile.ZipFile(folder / "images" / f"{part}.zip", "w") as out:
            for name in names:
                out.write(name, name.relative_to(folder / "images" / part))
        lines = [f"{name.parent.name}/{name.name}\t{int(name.parent.name[1:])}\n" for name in names]
        (folder / "images" / f"{part}_map.txt").write_text("".join(lines))


def numbered_pictures(folder: Path) -> None:
    """Make pictures of 8 x 8, and the file that says the class of each, as NVIDIA's programs read it."""
    from PIL import Image

    draw = np.random.default_rng(80)
    place = folder / "images"
    place.mkdir()
    labels = []
    for number in range(96):
        pixels = draw.integers(0, 255, (8, 8, 3), dtype=np.uint8)
        pixels[:, :, number % 3] //= 2
        Image.fromarray(pixels).save(place / f"{number:03}.png")
        labels.append([f"{number:03}.png", number % 3])
    (place / "dataset.json").write_text(json.dumps({"labels": labels}))


def remembered_teacher(folder: Path) -> None:
    """Make pictures in folders, and what a teacher said of each in five epochs: a seed, ten classes and their shares."""
    from tiny_data import image_folder

    image_folder(folder)
    draw = np.random.default_rng(79)
    for epoch in range(5):
        place = folder / "logits" / f"logits_top10_epoch{epoch}"
        place.mkdir(parents=True)
        for rank in range(2):
            keys, values = [], b""
            for number in range(rank, 96, 2):
                classes = np.concatenate([[number // 16], draw.choice(np.arange(6, 1000), 9, replace=False)])
                shares = np.concatenate([[0.5], draw.uniform(0.01, 0.05, 9)])
                keys.append(f"{number}\n")
                values += np.int32(draw.integers(0, 2**31 - 1)).tobytes()
                values += classes.astype(np.int16).tobytes() + shares.astype(np.float16).tobytes()
            (place / f"rank{rank}-keys.txt").write_text("".join(keys))
            (place / f"rank{rank}-values.bin").write_bytes(values)


def picture_shards(folder: Path) -> None:
    """Make archives of pictures with their classes, and what stands for the weights of TiTok's pretrained tokenizer."""
    import io
    import tarfile

    import torch
    from PIL import Image

    draw = np.random.default_rng(78)
    (folder / "shards").mkdir()
    for part, count in (("train", 2), ("eval", 1)):
        for shard in range(count):
            with tarfile.open(folder / "shards" / f"{part}-{shard:04}.tar", "w") as archive:
                for number in range(24):
                    picture = io.BytesIO()
                    coarse = np.kron(draw.integers(0, 255, (8, 8, 3)), np.ones((10, 10, 1))).astype(np.uint8)
                    Image.fromarray(coarse).save(picture, "PNG")
                    for kind, content in (("png", picture.getvalue()), ("cls", str(number % 6).encode())):
                        member = tarfile.TarInfo(f"{part}{shard}{number:04}.{kind}")
                        member.size = len(content)
                        archive.addfile(member, io.BytesIO(content))
    sys.path.insert(0, str(folder))
    from modeling.titok import PretrainedTokenizer

    class Fresh(PretrainedTokenizer):
        def load_state_dict(self, *given: Any, **options: Any) -> None:
            pass

    torch.manual_seed(9)
    torch.save({}, folder / "tokenizer.bin")
    torch.save(Fresh(folder / "tokenizer.bin").state_dict(), folder / "tokenizer.bin")
