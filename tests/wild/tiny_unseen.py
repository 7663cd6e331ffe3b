"""Tiny data for the programs of the wild corpus that were chosen last: fields, speakers, diffusion over words, molecules."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def flowing_fields(folder: Path) -> None:
    """Make flows over time on small grids, in the files that DPOT looks for."""
    import h5py

    draw = np.random.default_rng(141)
    place = folder / "data" / "large"
    place.mkdir(parents=True)
    for name, steps in (("1e-5", 14), ("1e-4", 24)):
        for part, count in (("train", 24), ("test", 6)):
            with h5py.File(place / f"ns2d_{name}_{part}.hdf5", "w") as out:
                out["data"] = draw.normal(0, 1, (count, 16, 16, steps)).cumsum(-1).astype(np.float32)


def represented_pictures(folder: Path) -> None:
    """Make pictures with their latents, an encoder and a decoder, as REPA wants them."""
    import torch
    from diffusers import AutoencoderKL

    draw = np.random.default_rng(142)
    images, features = folder / "things" / "images", folder / "things" / "vae-sd"
    for place in (images, features, folder / "ckpts"):
        place.mkdir(parents=True)
    for n in range(48):
        np.save(images / f"{n:03}.npy", draw.integers(0, 255, (3, 256, 256), dtype=np.uint8))
        np.save(features / f"{n:03}.npy", draw.normal(0, 1, (8, 32, 32)).astype(np.float32))
    labels = [[f"{n:03}.npy", n % 10] for n in range(48)]
    (features / "dataset.json").write_text(json.dumps({"labels": labels}))
    torch.manual_seed(142)
    AutoencoderKL(block_out_channels=(4, 4, 4, 4), norm_num_groups=2, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
    ).save_pretrained(folder / "vae")  # fmt: skip
    sys.path.insert(0, str(folder))
    from models import mocov3_vit  # type: ignore[import-not-found]

    weights = mocov3_vit.vit_small().state_dict()
    named = {f"module.base_encoder.{name}": value for name, value in weights.items() if not name.startswith("head")}
    torch.save({"state_dict": named}, folder / "ckpts" / "mocov3_vits.pth")


METERS = """class AverageValueMeter:
    def __init__(self):
        self.sum, self.count = 0.0, 0

    def add(self, value):
        self.sum, self.count = self.sum + value, self.count + 1

    def value(self):
        return self.sum / max(self.count, 1), 0.0


class ClassErrorMeter:
    def __init__(self, accuracy=False):
        self.right, self.count = 0, 0

    def add(self, output, target):
        self.right, self.count = self.right + int((output.argmax(1) == target).sum()), self.count + len(target)

    def value(self):
        return [100.0 * self.right / max(self.count, 1)]
"""


def known_voices(folder: Path) -> None:
    """Make sounds of some speakers, settings of WeSpeaker for a tiny network, and the meters of torchnet."""
    import yaml
    from tiny_visitors import write_wave

    (folder / "torchnet").mkdir()
    (folder / "torchnet" / "__init__.py").write_text("from . import meter\n")
    (folder / "torchnet" / "meter.py").write_text(METERS)
    (folder / "voices").mkdir()
    rows, labels = [], []
    for n in range(64):
        path, speaker = folder / "voices" / f"{n:02}.wav", f"speaker{n % 6}"
        write_wave(path, 16000, 0.8 + 0.02 * (n % 10), 150 + n)
        rows.append(json.dumps({"key": path.stem, "wav": f"voices/{path.name}", "spk": speaker}))
        labels.append(f"{path.stem} {speaker}")
    (folder / "raw.list").write_text("\n".join(rows) + "\n")
    (folder / "utt2spk").write_text("\n".join(labels) + "\n")
    settings = folder / "examples" / "voxceleb" / "v2" / "conf" / "ecapa_tdnn.yaml"
    options: dict[str, Any] = yaml.safe_load(settings.read_text())
    options.update(exp_dir="out", gpus=[0, 1], num_avg=1, num_epochs=4, save_epoch_interval=2, log_batch_interval=2)
    options.update(data_type="raw", train_data="raw.list", train_label="utt2spk")
    options["dataloader_args"].update(batch_size=4, num_workers=1, prefetch_factor=2)
    options["dataset_args"].update(speed_perturb=False, num_frms=40, spec_aug=True, shuffle_args={"shuffle_size": 16})
    options["dataset_args"]["filter_args"].update(min_num_frames=40)
    options["dataset_args"]["fbank_args"].update(num_mel_bins=24)
    options["dataset_args"]["spec_aug_args"].update(max_t=4, max_f=4)
    options["model_args"].update(feat_dim=24, embed_dim=16)
    options["margin_update"].update(increase_start_epoch=1, fix_start_epoch=3)
    options["scheduler_args"].update(warm_up_epoch=1)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(options))


ATTENTION = '''"""Attention as a graphics card would do it, with torch alone."""

import torch
import torch.nn.functional as F


def turned(qkv, cos, sin):
    half = cos.shape[-1]
    cos, sin = cos[None, :, None, None, :], sin[None, :, None, None, :]
    turning, value = qkv[:, :, :2], qkv[:, :, 2:]
    first, second = turning[..., :half], turning[..., half:]
    return torch.cat((torch.cat((first * cos - second * sin, first * sin + second * cos), -1), value), 2)


def attended(qkv, lengths, longest, dropout, causal):
    batch = len(lengths) - 1
    query, key, value = qkv.view(batch, longest, *qkv.shape[1:]).permute(2, 0, 3, 1, 4)
    found = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    return found.transpose(1, 2).flatten(0, 1)
'''


def hidden_words(folder: Path) -> None:
    """Make texts in blocks of token numbers where MDLM keeps them, and the attention that a graphics card would have."""
    from datasets import Dataset

    draw = np.random.default_rng(143)
    for part, count in (("train", 96), ("test", 16)):
        blocks = [[2, *map(int, draw.integers(4, 30, 30)), 3] for _ in range(count)]
        rows = Dataset.from_dict({"input_ids": blocks, "attention_mask": [[1.0] * 32] * count})
        rows.save_to_disk(folder / "cache" / f"ag_news_{part}_bs32_wrapped.dat")
    (folder / "attention_on_cpu.py").write_text(ATTENTION)


def shaken_molecules(folder: Path) -> None:
    """Make a molecule in many positions as a database of SchNetPack, and the script that its package installs."""
    sys.path.insert(0, str(folder / "src"))
    from ase import Atoms
    from schnetpack.data import ASEAtomsData  # type: ignore[import-not-found]

    draw = np.random.default_rng(144)
    (folder / "data").mkdir()
    units = {"energy": "kcal/mol", "forces": "kcal/mol/Ang"}
    data = ASEAtomsData.create(str(folder / "data" / "ethanol.db"), distance_unit="Ang", property_unit_dict=units)
    data.update_metadata(molecule="ethanol")
    rest = np.array(((0, 0, 0), (1.4, 0, 0), (2, 1.3, 0), (-0.5, 0.9, 0.3), (-0.5, -0.9, 0.3), (1.8, -0.5, 0.9)))
    found, rows = [], []
    for _ in range(96):
        found.append(Atoms("CCOHHH", positions=rest + draw.normal(0, 0.08, rest.shape)))
        rows.append({"energy": draw.normal(-97, 1, 1), "forces": draw.normal(0, 1, rest.shape)})
    data.add_systems(property_list=rows, atoms_list=found)
    (folder / "spktrain.py").write_text("from schnetpack.cli import train\n\ntrain()\n")


def told_and_mixed_pictures(folder: Path) -> None:
    """Make archives of captions with pictures and of texts with pictures in them, and a tiny CLIP, as OpenFlamingo reads them."""
    import base64
    import io
    import tarfile

    from PIL import Image
    from tiny_data import text

    draw = np.random.default_rng(145)

    def picture() -> bytes:
        out = io.BytesIO()
        Image.fromarray(draw.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(out, "PNG")
        return out.getvalue()

    def add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
        told = tarfile.TarInfo(name)
        told.size = len(content)
        archive.addfile(told, io.BytesIO(content))

    for shard in range(4):
        with tarfile.open(folder / f"laion-{shard}.tar", "w") as archive:
            for n in range(20):
                add(archive, f"{shard}{n:03}.png", picture())
                add(archive, f"{shard}{n:03}.txt", text(5, 100 * shard + n).encode())
        with tarfile.open(folder / f"mmc4-{shard}.tar", "w") as archive:
            for n in range(20):
                mixed = {
                    "text_list": [text(4, 1000 + 100 * shard + 3 * n + part) for part in range(3)],
                    "similarity_matrix": draw.uniform(0.1, 1, (2, 3)).tolist(),
                    "image_info": [{"image_base64": base64.b64encode(picture()).decode()} for _ in range(2)],
                }
                add(archive, f"{shard}{n:03}.json", json.dumps(mixed).encode())
    clip = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
    }
    (folder / "clips").mkdir()
    (folder / "clips" / "tiny.json").write_text(json.dumps(clip))


TALK = (
    "{% for message in messages %}{{ message['role'] }} : {{ message['content'] }} </s> {% endfor %}"
    "{% if add_generation_prompt %}assistant : {% endif %}"
)


def taught_talks(folder: Path) -> None:
    """Make talks, a way to write them down for the tiny model, and a model that teaches it."""
    import torch
    from tiny_data import text
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.chat_template = TALK
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    torch.manual_seed(146)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    for part in (model, tokenizer):
        part.save_pretrained(folder / "teacher")
    tokenizer.save_pretrained(folder / "model")
    (folder / "talks").mkdir()
    for part, count in (("train", 64), ("test", 8)):
        rows = []
        for n in range(count):
            said = [("user", text(5, 200 * n)), ("assistant", text(6, 200 * n + 1))]
            rows.append({"messages": [{"role": who, "content": what} for who, what in said]})
        (folder / "talks" / f"{part}.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def digits_in_a_row(folder: Path) -> None:
    """Make MNIST's own files where S4 keeps its data."""
    from tiny_data import mnist

    mnist(folder)
    (folder / "data" / "mnist").mkdir()
    (folder / "data" / "MNIST").rename(folder / "data" / "mnist" / "MNIST")


PROCESSOR = '''"""A processor, asked as a graphics card is."""

import types

import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_mask


def get_device_name(device=None):
    return "cpu"


def current_device():
    return 0


def get_device_properties(device=None):
    return types.SimpleNamespace(total_memory=1 << 30, name="cpu")


def memory_stats(device=None):
    return {}


def device_count():
    return 2


def _nothing(*args, **kwargs):
    return None


reset_peak_memory_stats = empty_cache = synchronize = set_device = _nothing


def attended(q, k, v, score_mod=None, block_mask=None, scale=None, enable_gqa=False, **rest):
    mask = create_mask(block_mask.mask_mod, 1, 1, q.shape[-2], k.shape[-2], device="cpu")
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa), None
'''


def crawled_lines(folder: Path) -> None:
    """Make texts where torchtitan's tests keep theirs, and a module that answers for a graphics card."""
    from tiny_data import text

    place = folder / "tests" / "assets" / "c4_test"
    place.mkdir(parents=True, exist_ok=True)
    rows = [json.dumps({"text": text(60 + n % 40, 40 * n), "url": "", "timestamp": ""}) for n in range(200)]
    (place / "data.json").write_text("\n".join(rows) + "\n")
    (folder / "processor_as_device.py").write_text(PROCESSOR)
