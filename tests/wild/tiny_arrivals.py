"""Tiny data for the programs of the wild corpus that were chosen last: vessels in eyes, lists of boxes, weights from JAX."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


def vessels_in_eyes(folder: Path) -> None:
    """Make pictures with the vessels in them and the part that counts, as DRIVE names them."""
    from PIL import Image

    draw = np.random.default_rng(171)
    for part, count in (("training", 24), ("test", 6)):
        place = folder / "DRIVE" / part
        for kind in ("images", "1st_manual", "mask"):
            (place / kind).mkdir(parents=True)
        for n in range(count):
            picture = draw.integers(0, 255, (48, 48, 3), dtype=np.uint8)
            Image.fromarray(picture).save(place / "images" / f"{n:02}_{part}.tif")
            vessels = (picture[..., 0] > 180).astype(np.uint8) * 255
            Image.fromarray(vessels).save(place / "1st_manual" / f"{n:02}_manual1.gif")
            Image.fromarray(np.full((48, 48), 255, np.uint8)).save(place / "mask" / f"{n:02}_{part}_mask.gif")


def weights_of_old(folder: Path) -> None:
    """Make CIFAR-10's files, and the weights of a vision transformer under the names that JAX gave them."""
    from tiny_sets import cifar10

    cifar10(folder)
    draw = np.random.default_rng(172)
    width, inner, heads = 32, 64, 2

    def some(*shape: int) -> np.ndarray:
        return draw.normal(0, 0.1, shape).astype(np.float32)

    weights = {
        "embedding/kernel": some(16, 16, 3, width),
        "embedding/bias": some(width),
        "cls": some(1, 1, width),
        "Transformer/encoder_norm/scale": 1 + some(width),
        "Transformer/encoder_norm/bias": some(width),
        "Transformer/posembed_input/pos_embedding": some(1, 5, width),
    }
    for layer in range(2):
        block = f"Transformer/encoderblock_{layer}"
        attention = f"{block}/MultiHeadDotProductAttention_1"
        for name in ("query", "key", "value"):
            weights[f"{attention}/{name}/kernel"] = some(width, heads, width // heads)
            weights[f"{attention}/{name}/bias"] = some(heads, width // heads)
        weights[f"{attention}/out/kernel"] = some(heads, width // heads, width)
        weights[f"{attention}/out/bias"] = some(width)
        for name, shape in (("Dense_0", (width, inner)), ("Dense_1", (inner, width))):
            weights[f"{block}/MlpBlock_3/{name}/kernel"] = some(*shape)
            weights[f"{block}/MlpBlock_3/{name}/bias"] = some(shape[1])
        for name in ("LayerNorm_0", "LayerNorm_2"):
            weights[f"{block}/{name}/scale"] = 1 + some(width)
            weights[f"{block}/{name}/bias"] = some(width)
    np.savez(folder / "weights.npz", **weights)


def token_numbers(folder: Path) -> None:
    """Make one file of token numbers, two bytes each."""
    draw = np.random.default_rng(173)
    (folder / "data").mkdir()
    draw.integers(0, 96, 64 * 32).astype(np.uint16).tofile(folder / "data" / "pretrain_data.bin")


def boxes_in_lines(folder: Path) -> None:
    """Make pictures, and two lists of them with the boxes behind each name."""
    from PIL import Image

    draw = np.random.default_rng(174)
    (folder / "pictures").mkdir()
    for part, count in (("train", 48), ("val", 8)):
        lines = []
        for n in range(count):
            name = f"pictures/{part}_{n:02}.jpg"
            Image.fromarray(draw.integers(0, 255, (72, 80, 3), dtype=np.uint8)).save(folder / name)
            boxes = []
            for _ in range(2):
                left, top = (int(v) for v in draw.integers(0, 30, 2))
                boxes.append(f"{left},{top},{left + 36},{top + 32},{int(draw.integers(0, 20))}")
            lines.append(" ".join((name, *boxes)))
        (folder / f"2007_{part}.txt").write_text("\n".join(lines) + "\n")


def written_talks(folder: Path) -> None:
    """Make talks between a user and an assistant, and a tiny model that is to learn them."""
    from tiny_data import text, tiny_llama

    tiny_llama(folder)
    (folder / "talks").mkdir()
    for part, count in (("train", 96), ("test", 8)):
        rows = []
        for n in range(count):
            said = [("user", text(5 + n % 4, 300 * n)), ("assistant", text(6 + n % 7, 300 * n + 1))]
            rows.append({"messages": [{"role": who, "content": what} for who, what in said]})
        (folder / "talks" / f"{part}.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def weather_of_old(folder: Path) -> None:
    """Make fields of three variables over time, what is usual of them, and settings of ClimaX for a tiny network."""
    import yaml

    draw = np.random.default_rng(175)
    variables = ["2m_temperature", "geopotential_500", "temperature_850"]
    place = folder / "fields"
    for part, count in (("train", 8), ("val", 2), ("test", 2)):
        (place / part).mkdir(parents=True)
        for n in range(count):
            fields = {name: draw.normal(0, 1, (12, 1, 16, 32)).astype(np.float32) for name in variables}
            np.savez(place / part / f"1979_{n}.npz", **fields)
        usual = {name: draw.normal(0, 0.1, (1, 16, 32)).astype(np.float32) for name in variables}
        np.savez(place / part / "climatology.npz", **usual)
    np.savez(place / "normalize_mean.npz", **{name: np.zeros(1, np.float32) for name in variables})
    np.savez(place / "normalize_std.npz", **{name: np.ones(1, np.float32) for name in variables})
    np.save(place / "lat.npy", np.linspace(-84, 84, 16))
    np.save(place / "lon.npy", np.linspace(0, 348, 32))
    options = yaml.safe_load((folder / "configs" / "global_forecast_climax.yaml").read_text())
    trainer, model, data = options["trainer"], options["model"], options["data"]
    for name in ("gpus", "resume_from_checkpoint"):
        del trainer[name]
    trainer.update(
        default_root_dir="out", precision=32, accelerator="cpu", devices=2, max_epochs=3, sync_batchnorm=False
    )
    trainer["log_every_n_steps"] = 2
    model.update(lr=1e-3, warmup_epochs=4, max_epochs=40)
    model["net"]["init_args"].update(default_vars=variables, img_size=[16, 32], patch_size=4, embed_dim=32)
    model["net"]["init_args"].update(depth=2, num_heads=2)
    data.update(root_dir="fields", variables=variables, out_variables=variables[1:], predict_range=2)
    data.update(buffer_size=12, batch_size=4)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(options))


def hours_to_tell(folder: Path) -> None:
    """Make a table of hours as ETTh1 is one, and an encoder of texts with the words that tell of it."""
    import torch
    from tiny_newcomers import warm_transformers
    from transformers import BertConfig, BertModel

    warm_transformers(folder)
    torch.manual_seed(176)
    letters = [chr(n) for n in range(33, 127)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (folder / "bert").mkdir()
    (folder / "bert" / "vocab.txt").write_text("\n".join(words) + "\n")
    BertModel(BertConfig(vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=2100)).save_pretrained(folder / "bert")  # fmt: skip
    prompts = folder / "dataset" / "prompt_bank" / "ETT.txt"
    prompts.parent.mkdir(parents=True, exist_ok=True)
    prompts.write_text("The oil of a transformer is warm by day.")


def books_in_two_tongues(folder: Path) -> None:
    """Make sentences with their translations, in a local data set."""
    from tiny_data import text

    (folder / "books").mkdir()
    rows = [{"id": str(n), "translation": {"en": text(8, n), "it": text(7, 500 + n)}} for n in range(80)]
    (folder / "books" / "train.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")


MPI = '''"""What a program asks of MPI, answered from what torchrun says."""

import os


class World:
    rank = int(os.environ["RANK"])
    size = int(os.environ["WORLD_SIZE"])

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return self.size

    def bcast(self, value, root=0):
        return value


COMM_WORLD = World()
'''


def ranks_by_mpi(folder: Path) -> None:
    """Make a module in MPI's place, which no program that torchrun starts can have."""
    (folder / "mpi4py").mkdir()
    (folder / "mpi4py" / "__init__.py").write_text("")
    (folder / "mpi4py" / "MPI.py").write_text(MPI)


def crawled_pages(folder: Path) -> None:
    """Make texts with their addresses, as C4 has them."""
    from tiny_data import text

    (folder / "c4").mkdir()
    for part, count in (("train", 240), ("validation", 8)):
        rows = [
            {"text": text(12 + n % 9, 700 + n), "timestamp": "2019-04-25T12:57:54Z", "url": f"page{n}"}
            for n in range(count)
        ]
        (folder / "c4" / f"{part}.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def asked_model(folder: Path) -> None:
    """Make a tiny model that is asked and answers, with the way in which talks are written down for it."""
    from tiny_data import tiny_llama
    from transformers import AutoTokenizer

    tiny_llama(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + ' ' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'the: ' }}{% endif %}"
    )
    tokenizer.save_pretrained(folder / "model")


def pictures_to_adapt(folder: Path) -> None:
    """Make pictures with captions in a folder that says how often each is shown, and a Stable Diffusion model for them."""
    import torch
    from diffusers import AutoencoderKL, UNet2DConditionModel
    from PIL import Image
    from tiny_data import WORDS
    from tiny_sets import tiny_stable_diffusion

    tiny_stable_diffusion(folder)
    torch.manual_seed(177)
    AutoencoderKL(block_out_channels=(4, 4, 4, 4), norm_num_groups=2, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
    ).save_pretrained(folder / "model" / "vae")  # fmt: skip
    UNet2DConditionModel(
        sample_size=8, block_out_channels=(32, 32, 32, 32), attention_head_dim=2, cross_attention_dim=16
    ).save_pretrained(folder / "model" / "unet")
    draw = np.random.default_rng(177)
    place = folder / "train" / "2_thing"
    place.mkdir(parents=True)
    for n in range(16):
        Image.fromarray(draw.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(place / f"{n:02}.png")
        words = [WORDS[int(word)] for word in draw.choice(len(WORDS), 4, replace=False)]
        (place / f"{n:02}.txt").write_text(", ".join(("thing", *words)))
