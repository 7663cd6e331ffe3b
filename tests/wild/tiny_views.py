"""Tiny data for programs of the wild corpus that look at pictures: two views of a scene, a teacher's weights, pictures to mend."""

from __future__ import annotations

from pathlib import Path

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
