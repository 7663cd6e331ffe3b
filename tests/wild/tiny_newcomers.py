"""Tiny data for the programs of the wild corpus that were chosen last: videos, voices with noise, molecules, carts, hours."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np


def old_articles(folder: Path) -> None:
    """Make the bytes of enwik8, of which the smallest part is needed."""
    from tiny_data import text

    (folder / "data").mkdir(exist_ok=True)
    with gzip.open(folder / "data" / "enwik8.gz", "wb") as out:
        out.write(text(4000).encode()[:10000])


def painted_noise(folder: Path) -> None:
    """Make the settings of Classy Vision's synthetic pictures, for a network of a few channels."""
    settings = folder / "classy_vision" / "configs" / "resnet50_synthetic_image_classy_config.json"
    options: dict[str, Any] = json.loads(settings.read_text())
    options["num_epochs"] = 3
    for part in options["dataset"].values():
        part.update(crop_size=32, num_samples=64, batchsize_per_replica=4, num_workers=0)
    head = {"name": "fully_connected", "unique_id": "head", "num_classes": 10, "fork_block": "block1-0", "in_plane": 64}
    options["model"].update(num_blocks=[1, 1], init_planes=8, small_input=True, heads=[head])
    (folder / "tiny.json").write_text(json.dumps(options))


def boxed_by_hand(folder: Path) -> None:
    """Make pictures with boxes as VOC 2007 keeps them."""
    from PIL import Image

    draw = np.random.default_rng(151)
    place = folder / "datasets" / "VOC2007"
    for part in ("Annotations", "ImageSets/Main", "JPEGImages"):
        (place / part).mkdir(parents=True)
    for part, first, count in (("trainval", 0, 24), ("test", 24, 4)):
        names = [f"{n:06}" for n in range(first, first + count)]
        (place / "ImageSets" / "Main" / f"{part}.txt").write_text("\n".join(names) + "\n")
        for name in names:
            Image.fromarray(draw.integers(0, 255, (96, 96, 3), dtype=np.uint8)).save(
                place / "JPEGImages" / f"{name}.jpg"
            )
            things = []
            for _ in range(2):
                left, top = (int(v) for v in draw.integers(1, 40, 2))
                corners = zip(("xmin", "ymin", "xmax", "ymax"), (left, top, left + 40, top + 45))
                box = "".join(f"<{tag}>{value}</{tag}>" for tag, value in corners)
                kind = ("cat", "dog", "person")[int(draw.integers(0, 3))]
                things.append(f"<object><name>{kind}</name><difficult>0</difficult><bndbox>{box}</bndbox></object>")
            (place / "Annotations" / f"{name}.xml").write_text(f"<annotation>{''.join(things)}</annotation>")


def sounds_of_things(folder: Path) -> None:
    """Make sounds with labels in the files that AudioMAE lists them in."""
    from tiny_visitors import write_wave

    (folder / "sounds").mkdir()
    rows = []
    for n in range(64):
        write_wave(folder / "sounds" / f"{n:02}.wav", 16000, 1.0 + 0.1 * (n % 5), 1510 + n)
        rows.append({"wav": f"sounds/{n:02}.wav", "labels": f"/m/{n % 4}"})
    (folder / "sounds.json").write_text(json.dumps({"data": rows}))
    lines = [f"{n},/m/{n},thing {n}" for n in range(4)]
    (folder / "labels.csv").write_text("\n".join(("index,mid,display_name", *lines)) + "\n")


def noisy_voices(folder: Path) -> None:
    """Make sounds with and without noise, and the lists of them."""
    from tiny_visitors import write_wave

    (folder / "voices").mkdir()
    for part, count in (("tr", 48), ("cv", 8)):
        lines = []
        for n in range(count):
            clean, noisy = (f"voices/{part}_{n:02}_{kind}.wav" for kind in ("clean", "noisy"))
            write_wave(folder / clean, 16000, 1.1, 1520 + n)
            write_wave(folder / noisy, 16000, 1.1, 1620 + n)
            lines.append(f"{noisy} {clean}")
        (folder / f"{part}.scp").write_text("\n".join(lines) + "\n")
    (folder / "out").mkdir()


def moving_skies(folder: Path) -> None:
    """Make videos as folders of pictures, the encoder of their latents, and settings of Latte."""
    import torch
    import yaml
    from diffusers import AutoencoderKL
    from PIL import Image

    draw = np.random.default_rng(153)
    for n in range(24):
        place = folder / "skies" / f"sky_{n:02}"
        place.mkdir(parents=True)
        for frame in range(12):
            Image.fromarray(draw.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(place / f"frame_{frame}.png")
    torch.manual_seed(153)
    AutoencoderKL(block_out_channels=(4, 4, 4, 4), norm_num_groups=2, latent_channels=4,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
    ).save_pretrained(folder / "pretrained" / "vae")  # fmt: skip
    options: dict[str, Any] = yaml.safe_load((folder / "configs" / "sky" / "sky_train.yaml").read_text())
    options.update(data_path="skies", pretrained_model_path="pretrained", results_dir="out", model="Latte-S/2")
    options.update(num_frames=4, image_size=64, frame_interval=2, ckpt_every=10, start_clip_iter=8)
    options.update(local_batch_size=2, max_train_steps=24, num_workers=1, log_every=4)
    (folder / "tiny.yaml").write_text(yaml.safe_dump(options))


BLOCKS = '''"""Attention within the blocks of a batch, as a graphics card would do it, with torch alone."""

import torch
import torch.nn.functional as F


class AttentionBias:
    pass


class BlockDiagonalCausalMask(AttentionBias):
    def __init__(self, lengths):
        self.lengths = lengths

    @classmethod
    def from_seqlens(cls, lengths):
        return cls(list(lengths))


def memory_efficient_attention(query, key, value, mask):
    blocks = [torch.ones(n, n, dtype=torch.bool).tril() for n in mask.lengths]
    parts = (x.transpose(1, 2) for x in (query, key, value))
    return F.scaled_dot_product_attention(*parts, attn_mask=torch.block_diag(*blocks)).transpose(1, 2)
'''


def taught_mistral(folder: Path) -> None:
    """Make weights of a tiny Mistral, texts to teach it with, its settings, and the attention that a graphics card has."""
    import torch
    import yaml
    from safetensors.torch import save_file
    from tiny_data import text

    width, hidden, words, layers = 16, 32, 32768, 2
    shapes = {"tok_embeddings.weight": (words, width), "norm.weight": (width,), "output.weight": (words, width)}
    for n in range(layers):
        shapes |= {f"layers.{n}.attention.w{part}.weight": (width, width) for part in "qkvo"}
        shapes |= {f"layers.{n}.feed_forward.w{part}.weight": (hidden, width) for part in "13"}
        shapes[f"layers.{n}.feed_forward.w2.weight"] = (width, hidden)
        shapes |= {f"layers.{n}.{part}_norm.weight": (width,) for part in ("attention", "ffn")}
    torch.manual_seed(154)
    weights = {
        name: torch.ones(shape) if len(shape) == 1 else 0.1 * torch.randn(shape) for name, shape in shapes.items()
    }
    (folder / "model_of_mistral").mkdir()
    save_file(weights, folder / "model_of_mistral" / "consolidated.safetensors")
    parameters = {"dim": width, "n_layers": layers, "head_dim": 8, "hidden_dim": hidden, "n_heads": 2, "n_kv_heads": 2}
    (folder / "model_of_mistral" / "params.json").write_text(
        json.dumps({**parameters, "norm_eps": 1e-5, "vocab_size": words})
    )
    rows = [json.dumps({"text": text(14, 300 * n)}) for n in range(96)]
    (folder / "texts.jsonl").write_text("\n".join(rows) + "\n")
    options: dict[str, Any] = yaml.safe_load((folder / "example" / "7B.yaml").read_text())
    options["data"].update(data="texts.jsonl", instruct_data="", eval_instruct_data="")
    options.update(model_id_or_path="model_of_mistral", run_dir="out", seq_len=48, max_steps=24, num_microbatches=2)
    options.update(no_eval=True, ckpt_freq=10, log_freq=2)
    options["lora"]["rank"] = 4
    options["optim"]["lr"] = 1e-3
    del options["wandb"]
    (folder / "tiny.yaml").write_text(yaml.safe_dump(options))
    (folder / "attention_on_cpu.py").write_text(BLOCKS)


def pushed_molecules(folder: Path) -> None:
    """Make positions of a molecule with energies and forces, as arrays in files."""
    draw = np.random.default_rng(155)
    rest = np.array(((0, 0, 0), (1.4, 0, 0), (2, 1.3, 0), (-0.5, 0.9, 0.3), (-0.5, -0.9, 0.3), (1.8, -0.5, 0.9)))
    (folder / "molecules").mkdir()
    values = {
        "coords": rest + draw.normal(0, 0.1, (96, *rest.shape)),
        "energies": draw.normal(-9, 1, (96, 1)),
        "forces": draw.normal(0, 1, (96, *rest.shape)),
    }
    for name, value in values.items():
        np.save(folder / "molecules" / f"{name}.npy", value.astype(np.float32))
    np.save(folder / "molecules" / "types.npy", np.array((6, 6, 8, 1, 1, 1)))


def faces_to_code(folder: Path) -> None:
    """Make pictures where RQ-VAE looks for faces, and settings for a few codes."""
    import yaml
    from PIL import Image

    draw = np.random.default_rng(156)
    place, lists = folder / "data" / "ffhq", folder / "rqvae" / "img_datasets" / "assets"
    place.mkdir(parents=True)
    for part, first, count in (("train", 0, 48), ("validation", 48, 8)):
        names = [f"{n:05}.png" for n in range(first, first + count)]
        (lists / f"ffhq{part}.txt").write_text("\n".join(names) + "\n")
        for name in names:
            Image.fromarray(draw.integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(place / name)
    options: dict[str, Any] = yaml.safe_load(
        (folder / "configs" / "ffhq" / "stage1" / "ffhq256-rqvae-8x8x4.yaml").read_text()
    )
    options["dataset"] = {"type": "ffhq", "transforms": {"type": "ffhq32x32"}}
    options["arch"]["hparams"].update(embed_dim=16, n_embed=32, latent_shape=[16, 16, 16], code_shape=[16, 16, 2])
    options["arch"]["ddconfig"].update(z_channels=32, resolution=32, ch=32, ch_mult=[1, 1], num_res_blocks=1)
    options["arch"]["ddconfig"]["attn_resolutions"] = [16]
    options["optimizer"]["init_lr"] = 1e-3
    options["experiment"].update(batch_size=4, epochs=4, save_ckpt_freq=2, test_freq=2)
    options["gan"]["disc"]["arch"].update(ndf=8)
    options["gan"]["loss"]["disc_start"] = 1
    (folder / "tiny.yaml").write_text(yaml.safe_dump(options))


def queries_with_answers(folder: Path) -> None:
    """Make questions and answers as numbers of words."""
    draw = np.random.default_rng(157)
    (folder / "queries").mkdir()
    for part, count in (("train", 64), ("validation", 8), ("test", 8)):
        rows = []
        for _ in range(count):
            query, answer = (draw.integers(4, 30, length).tolist() for length in (10, 6))
            rows.append(json.dumps({"query_token": query, "reference_response_token": answer}))
        (folder / "queries" / f"{part}.jsonl").write_text("\n".join(rows) + "\n")


def scanned_bodies(folder: Path) -> None:
    """Make volumes in five data sets as the pre-training of Swin UNETR lists them."""
    import nibabel

    draw = np.random.default_rng(158)
    names = ("LUNA16_0", "TCIAcovid19_0", "HNSCC_0", "TCIAcolon_v2_0", "LIDC_0")
    for name, number in zip(names, (1, 2, 3, 4, 8)):
        place = folder / "dataset" / f"dataset{number}"
        place.mkdir(parents=True)
        rows = []
        for n in range(10):
            values = draw.normal(0, 300, (72, 40, 40)).astype(np.float32)
            nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), place / f"{n}.nii.gz")
            rows.append({"image": f"{n}.nii.gz"})
        content = {"training": rows[:8], "validation": rows[8:]}
        (folder / "jsons" / f"dataset_{name}.json").write_text(json.dumps(content))


def clicked_news(folder: Path) -> None:
    """Make news and who has read them in which order."""
    from tiny_data import text

    draw = np.random.default_rng(159)
    place = folder / "news"
    place.mkdir()
    news = [f"N{n}\t{text(5, n)}\t{text(9, 500 + n)}" for n in range(40)]
    (place / "news_l5_tr_v.tsv").write_text("\n".join(news) + "\n")
    readers = []
    for n in range(96):
        read = draw.choice(40, int(draw.integers(6, 12)), replace=False)
        readers.append(f"U{n}\t{' '.join(f'N{item}' for item in read)}")
    (place / "behaviors_l5_tr_v.tsv").write_text("\n".join(readers) + "\n")


def warm_transformers(folder: Path) -> None:
    """Make a table of hours as ETTh1 is one."""
    import pandas

    draw = np.random.default_rng(160)
    columns = ("HUFL", "HULL", "MUFL", "MULL", "LUFL", "LULL", "OT")
    waves = np.sin(np.arange(220)[:, None] / (3 + np.arange(7))) + draw.normal(0, 0.1, (220, 7))
    table = pandas.DataFrame(waves, columns=columns)
    table.insert(0, "date", pandas.date_range("2016-07-01", periods=220, freq="h"))
    table.to_csv(folder / "ETTh1.csv", index=False)
