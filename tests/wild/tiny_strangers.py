"""Tiny data for programs of the wild corpus that nobody had run before: frames, masks, graphs, items, tokens."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np


def frame_triplets(folder: Path) -> None:
    """Make triples of frames, each a few pixels on from the one before, and the lists of them that RIFE reads."""
    from PIL import Image

    draw = np.random.default_rng(91)
    place = folder / "vimeo_triplet"
    names = [f"{number:05}/0001" for number in range(52)]
    for name in names:
        coarse = np.kron(draw.integers(0, 255, (8, 8, 3)), np.ones((8, 8, 1))).astype(np.uint8)
        (place / "sequences" / name).mkdir(parents=True)
        for frame in (1, 2, 3):
            moved = np.roll(coarse, (frame, -frame), (0, 1))
            Image.fromarray(moved).save(place / "sequences" / name / f"im{frame}.png")
    for part in ("train", "test"):
        (place / f"tri_{part}list.txt").write_text("\n".join(names))
    (folder / "train_log").mkdir()


def masked_videos(folder: Path) -> None:
    """Make pictures with masks, and videos with objects, as XMem's first and third stages read them."""
    from PIL import Image

    draw = np.random.default_rng(92)

    def picture(place: Path, box: int) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 255, (72, 80, 3), dtype=np.uint8)).save(place)
        mask = np.zeros((72, 80), np.uint8)
        mask[box : box + 40, 10:50] = 255
        Image.fromarray(mask).save(place.with_suffix(".png"))

    for kind in ("fss/one", "DUTS-TR", "DUTS-TE", "ecssd", "BIG_small", "HRSOD_small"):
        for number in range(4):
            picture(folder / "static" / kind / f"{number}.jpg", 5 + number)
    known = {
        folder / "DAVIS" / "2017" / "trainval": ("480p", "davis_subset.txt"),
        folder / "YouTube" / "train_480p": ("", "yv_subset.txt"),
    }
    for place, (size, listed) in known.items():
        for name in (folder / "util" / listed).read_text().split()[:4]:
            for frame in range(8):
                draw_at = place / "JPEGImages" / size / name / f"{frame:05}.jpg"
                draw_at.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(draw.integers(0, 255, (72, 80, 3), dtype=np.uint8)).save(draw_at)
                mask = np.zeros((72, 80), np.uint8)
                mask[10 + frame : 50 + frame, 10:40] = 1
                mask[20:60, 45 + frame : 70] = 2
                told = Image.fromarray(mask, mode="P")
                told.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
                where = place / "Annotations" / size / name / f"{frame:05}.png"
                where.parent.mkdir(parents=True, exist_ok=True)
                told.save(where)


def fineweb_shards(folder: Path) -> None:
    """Make shards of tokens with the header that llm.c gives them."""
    draw = np.random.default_rng(93)
    place = folder / "data" / "fineweb10B"
    place.mkdir(parents=True)
    for name, count in (("train_000001", 700), ("train_000002", 900), ("val_000000", 600)):
        header = np.zeros(256, np.int32)
        header[:3] = 20240520, 1, count
        tokens = draw.integers(0, 128, count, dtype=np.uint16)
        (place / f"fineweb_{name}.bin").write_bytes(header.tobytes() + tokens.tobytes())


def knowledge_graph(folder: Path) -> None:
    """Make the triples of a small graph in three files, and ULTRA's settings for a small network."""
    import yaml

    draw = np.random.default_rng(94)
    place = folder / "kg" / "codex-s" / "raw"
    place.mkdir(parents=True)
    for name, count in (("train", 400), ("valid", 24), ("test", 24)):
        triples = [f"e{draw.integers(60)}\tr{draw.integers(5)}\te{draw.integers(60)}" for _ in range(count)]
        (place / f"{name}.txt").write_text("\n".join(triples) + "\n")
    network = {"input_dim": 16, "hidden_dims": [16, 16], "message_func": "distmult", "aggregate_func": "sum"}
    parts = {"short_cut": True, "layer_norm": True}
    settings = {
        "output_dir": "output",
        "dataset": {"class": "CoDExSmall", "root": "../../../../kg"},
        "model": {
            "class": "Ultra",
            "relation_model": {"class": "RelNBFNet", **network, **parts},
            "entity_model": {"class": "EntityNBFNet", **network, **parts},
        },
        "task": {
            "name": "TransductiveInference", "num_negative": 8, "strict_negative": True, "adversarial_temperature": 1,
            "metric": ["mr", "mrr", "hits@1", "hits@10"],
        },
        "optimizer": {"class": "AdamW", "lr": 5.0e-4},
        "train": {"gpus": None, "batch_size": 16, "num_epoch": 4, "log_interval": 4, "batch_per_epoch": 6},
    }  # fmt: skip
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))
    # at once, since ranks that do this beside each other write to one file
    sys.path.insert(0, str(folder))
    from ultra import datasets

    datasets.CoDExSmall(root=str(folder / "kg"))


def embedded_items(folder: Path) -> None:
    """Make a table of items with embeddings of their texts, as RQ-VAE-Recommender keeps Amazon's, and its settings."""
    import torch
    from torch_geometric.data import HeteroData, InMemoryDataset

    torch.manual_seed(95)
    place = folder / "dataset" / "amazon"
    (place / "raw" / "beauty").mkdir(parents=True)
    (place / "processed").mkdir(parents=True)
    data = HeteroData()
    data["item"].x = torch.randn(400, 768)
    data["item"].text = np.array([f"item {number}" for number in range(400)])
    data["item"].is_train = torch.arange(400) % 20 != 0
    InMemoryDataset.save([data], str(place / "processed" / "data_beauty.pt"))
    given = {
        "iterations": 1000, "batch_size": 32, "learning_rate": 0.001, "weight_decay": 0.0001, "vae_input_dim": 768,
        "vae_n_cat_feats": 0, "vae_hidden_dims": [64, 32], "vae_embed_dim": 16, "vae_codebook_size": 16,
        "save_model_every": 1000, "eval_every": 1000, "dataset_folder": '"dataset/amazon"', "save_dir_root": '"out/"',
        "dataset": "%data.processed.RecDataset.AMAZON", "dataset_split": '"beauty"', "wandb_logging": False,
        "vae_codebook_mode": "%modules.quantize.QuantizeForwardMode.STE", "do_eval": True, "use_kmeans_init": True,
    }  # fmt: skip
    lines = ["import data.processed", "import modules.quantize", *(f"train.{name}={of}" for name, of in given.items())]
    (folder / "tiny.gin").write_text("\n".join(lines) + "\n")


def diffusion_script(folder: Path) -> None:
    """Make pictures, and the script that denoising-diffusion-pytorch asks its users to write, with small sizes."""
    from PIL import Image

    draw = np.random.default_rng(96)
    (folder / "pictures").mkdir()
    for number in range(112):
        picture = draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(picture).save(folder / "pictures" / f"{number:03}.png")
    (folder / "train.py").write_text(
        "from denoising_diffusion_pytorch import GaussianDiffusion, Trainer, Unet\n\n"
        "if __name__ == '__main__':\n"
        "    model = Unet(dim=8, dim_mults=(1, 2))\n"
        "    diffusion = GaussianDiffusion(model, image_size=16, timesteps=20, sampling_timesteps=4)\n"
        "    trainer = Trainer(\n"
        "        diffusion, 'pictures', train_batch_size=8, train_lr=8e-5, train_num_steps=30,\n"
        "        gradient_accumulate_every=2, ema_decay=0.995, calculate_fid=False, save_and_sample_every=10, num_samples=4,\n"
        "    )\n"
        "    trainer.train()\n"
    )


def _pictures_of_kinds(place: Path, kinds: int, each: int, size: int, draw: np.random.Generator) -> None:
    from PIL import Image

    for number in range(kinds * each):
        where = place / f"kind{number % kinds}" / f"{number:03}.png"
        where.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draw.integers(0, 255, (size, size, 3), dtype=np.uint8)).save(where)


def distilled_pictures(folder: Path) -> None:
    """Make pictures in folders, and torchdistill's settings for a small teacher and a smaller student."""
    draw = np.random.default_rng(97)
    _pictures_of_kinds(folder / "pictures" / "train", 6, 16, 36, draw)
    _pictures_of_kinds(folder / "pictures" / "val", 6, 3, 36, draw)
    sample = folder / "configs" / "sample" / "ilsvrc2012" / "kd" / "resnet18_from_resnet34.yaml"
    smaller = {
        "'~/datasets/', *dataset_name": "'pictures'",
        "[224, 224]": "[32, 32]",
        "size: 256": "size: 36",
        "num_classes: 1000": "num_classes: 6",
        "      weights: !getattr [*teacher_weights, 'IMAGENET1K_V1']\n": "",
        "num_workers: 16": "num_workers: 1",
        "batch_size: 32": "batch_size: 8",
        "num_epochs: 20": "num_epochs: 4",
        "milestones: [5, 15]": "milestones: [1, 3]",
        "log_freq: 1000": "log_freq: 2",
        "resnet34'": "resnet18'",
        "ResNet34_": "ResNet18_",
    }
    text = sample.read_text()
    for before, after in smaller.items():
        text = text.replace(before, after)
    (folder / "tiny.yaml").write_text(text)


def boxed_things(folder: Path) -> None:
    """Make pictures with boxes as COCO has them, and D-FINE's settings for a small network."""
    import yaml
    from PIL import Image

    draw = np.random.default_rng(98)
    for part, count in (("train", 48), ("val", 8)):
        place = folder / "boxes" / part
        place.mkdir(parents=True)
        told: dict[str, Any] = {
            "images": [],
            "annotations": [],
            "categories": [{"id": n, "name": f"k{n}"} for n in range(3)],
        }
        for number in range(count):
            Image.fromarray(draw.integers(0, 255, (90, 110, 3), dtype=np.uint8)).save(place / f"{number}.jpg")
            told["images"].append({"id": number, "file_name": f"{number}.jpg", "height": 90, "width": 110})
            for _ in range(2):
                x, y, w, h = (int(of) for of in (*draw.integers(0, 40, 2), *draw.integers(25, 45, 2)))
                told["annotations"].append(
                    {"id": len(told["annotations"]) + 1, "image_id": number, "category_id": int(draw.integers(3)),
                     "bbox": [x, y, w, h], "area": w * h, "iscrowd": 0}
                )  # fmt: skip
        (folder / "boxes" / f"{part}.json").write_text(json.dumps(told))
    resize = {"type": "Resize", "size": [96, 96]}
    ops = [
        {"type": "RandomPhotometricDistort", "p": 0.5}, {"type": "RandomZoomOut", "fill": 0},
        {"type": "RandomIoUCrop", "p": 0.8}, {"type": "SanitizeBoundingBoxes", "min_size": 1},
        {"type": "RandomHorizontalFlip"}, resize, {"type": "SanitizeBoundingBoxes", "min_size": 1},
        {"type": "ConvertPILImage", "dtype": "float32", "scale": True},
        {"type": "ConvertBoxes", "fmt": "cxcywh", "normalize": True},
    ]  # fmt: skip
    policy = {"name": "stop_epoch", "epoch": 3, "ops": ["RandomPhotometricDistort", "RandomZoomOut", "RandomIoUCrop"]}
    settings = {
        "__include__": ["configs/dfine/custom/dfine_hgnetv2_n_custom.yml"],
        "output_dir": "out", "num_classes": 3, "sync_bn": False, "use_amp": False, "epochs": 5, "eval_spatial_size": [96, 96],
        "HGNetv2": {"pretrained": False},
        "HybridEncoder": {"hidden_dim": 32, "dim_feedforward": 64},
        "DFINETransformer": {
            "feat_channels": [32, 32], "hidden_dim": 32, "dim_feedforward": 64, "num_queries": 20, "num_denoising": 10,
        },
        "DFINEPostProcessor": {"num_top_queries": 20},
        "lr_warmup_scheduler": {"warmup_duration": 4}, "print_freq": 2, "checkpoint_freq": 2,
        "ema": {"warmups": 4},
        "train_dataloader": {
            "total_batch_size": 16, "num_workers": 1,
            "dataset": {"img_folder": "boxes/train", "ann_file": "boxes/train.json", "transforms": {"ops": ops, "policy": policy}},
            "collate_fn": {"base_size": 96, "base_size_repeat": 2, "stop_epoch": 3, "ema_restart_decay": 0.99},
        },
        "val_dataloader": {
            "total_batch_size": 4, "num_workers": 1,
            "dataset": {"img_folder": "boxes/val", "ann_file": "boxes/val.json", "transforms": {"ops": [resize, ops[7]]}},
        },
    }  # fmt: skip
    (folder / "tiny.yml").write_text(yaml.safe_dump(settings))


def handwritten_digits(folder: Path) -> None:
    """Make MNIST's four files, with few pictures, and the file by which the template knows its root."""
    (folder / ".project-root").touch()
    draw = np.random.default_rng(99)
    place = folder / "data" / "MNIST" / "raw"
    place.mkdir(parents=True)
    for name, count in (("train", 256), ("t10k", 64)):
        head = np.array([0x803, count, 28, 28], ">i4").tobytes()
        (place / f"{name}-images-idx3-ubyte").write_bytes(
            head + draw.integers(0, 255, count * 784, dtype=np.uint8).tobytes()
        )
        head = np.array([0x801, count], ">i4").tobytes()
        (place / f"{name}-labels-idx1-ubyte").write_bytes(head + draw.integers(0, 10, count, dtype=np.uint8).tobytes())


def kinds_of_pictures(folder: Path) -> None:
    """Make small pictures in folders, for training and for validation."""
    draw = np.random.default_rng(100)
    _pictures_of_kinds(folder / "datasets" / "train", 4, 24, 36, draw)
    _pictures_of_kinds(folder / "datasets" / "val", 4, 4, 36, draw)


def measured_hours(folder: Path) -> None:
    """Make two tables of series in arrow files, a small T5, and chronos' settings."""
    import yaml
    from gluonts.dataset.arrow import ArrowWriter
    from transformers import T5Config, T5ForConditionalGeneration

    draw = np.random.default_rng(101)
    for name in ("one", "two"):
        series = [
            {
                "start": np.datetime64("2020-01-01 00:00", "s"),
                "target": draw.normal(size=160).cumsum().astype(np.float32),
            }
            for _ in range(20)
        ]
        ArrowWriter(compression="lz4").write_to_file(series, path=folder / f"{name}.arrow")
    small = T5Config(vocab_size=128, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, decoder_start_token_id=0)
    T5ForConditionalGeneration(small).save_pretrained(folder / "tiny-t5")
    settings = {
        "training_data_paths": "['one.arrow', 'two.arrow']", "probability": "[0.7, 0.3]", "context_length": 32,
        "prediction_length": 8, "min_past": 16, "max_steps": 26, "save_steps": 10, "log_steps": 4, "learning_rate": 0.001,
        "per_device_train_batch_size": 4, "shuffle_buffer_length": 20, "gradient_accumulation_steps": 1,
        "model_id": "tiny-t5", "random_init": True, "tie_embeddings": True, "tf32": False, "torch_compile": False,
        "n_tokens": 128, "dataloader_num_workers": 1, "seed": 5,
    }  # fmt: skip
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))


def tokens_of_two_kinds(folder: Path) -> None:
    """Make tokens of pictures and of depths with the crops that they are of, and 4M's settings for the two."""
    import yaml

    draw = np.random.default_rng(103)
    for part, count in (("train", 96), ("val", 8)):
        for kind in ("tok_rgb@224", "tok_depth@224", "crop_settings"):
            place = folder / "tokens" / part / kind / "one"
            place.mkdir(parents=True)
            for number in range(count):
                crops = np.array([[0, 0, 224, 224, 0], [5, 5, 200, 200, 1]])
                drawn = crops if kind == "crop_settings" else draw.integers(0, 64, (2, 196), dtype=np.int16)
                np.save(place / f"{number}.npy", drawn)
    kinds = "tok_rgb@224-tok_depth@224"
    told = {
        "type": "multimodal", "in_domains": kinds, "out_domains": kinds, "input_alphas": "1.0-1.0", "target_alphas": "1.0-1.0",
        "data_path": "tokens/train", "use_wds": False, "main_augment_domain": "tok_rgb@224", "tok_train_aug": True,
    }  # fmt: skip
    settings = {
        "train": {"datasets": {"tiny": told}, "weights": [1.0]},
        "val": {"datasets": {"tiny": {"data_path": "tokens/val"}}},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))


def llama_to_adapt(folder: Path) -> None:
    """Make a small Llama with a tokenizer of bytes, and LLaMA-Factory's settings to adapt it with LoRA."""
    import yaml
    from tokenizers import ByteLevelBPETokenizer
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    trained = ByteLevelBPETokenizer()
    trained.train(
        [str(folder / "data" / "alpaca_en_demo.json")], vocab_size=320, special_tokens=["<s>", "</s>", "<pad>"]
    )
    told = PreTrainedTokenizerFast(tokenizer_object=trained, bos_token="<s>", eos_token="</s>", pad_token="<pad>")
    told.save_pretrained(folder / "tiny-llama")
    small = LlamaConfig(
        vocab_size=len(told), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=128, bos_token_id=0, eos_token_id=1, pad_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(small).save_pretrained(folder / "tiny-llama")
    settings = yaml.safe_load((folder / "examples" / "train_lora" / "qwen3_lora_sft.yaml").read_text())
    settings |= {
        "model_name_or_path": "tiny-llama", "template": "alpaca", "cutoff_len": 64, "max_samples": 60,
        "preprocessing_num_workers": 1, "dataloader_num_workers": 1, "output_dir": "saves", "logging_steps": 4,
        "save_steps": 8, "plot_loss": False, "gradient_accumulation_steps": 2, "num_train_epochs": 1.0, "bf16": False,
        "val_size": 0.1, "per_device_eval_batch_size": 2, "eval_strategy": "steps", "eval_steps": 8,
        "per_device_train_batch_size": 1,
    }  # fmt: skip
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))


def written_words(folder: Path) -> None:
    """Make pictures of words with what stands in them, in the databases that PARSeq reads."""
    import lmdb
    from PIL import Image

    draw = np.random.default_rng(104)
    letters = list("abcdefghij0123456789")
    for place, count in (("train/real/one", 96), ("val/two", 16)):
        (folder / "data" / place).mkdir(parents=True)
        with lmdb.open(str(folder / "data" / place), map_size=1 << 24) as kept, kept.begin(write=True) as told:
            told.put(b"num-samples", str(count).encode())
            for number in range(1, count + 1):
                held = io.BytesIO()
                Image.fromarray(draw.integers(0, 255, (16, 48, 3), dtype=np.uint8)).save(held, "png")
                told.put(f"image-{number:09d}".encode(), held.getvalue())
                told.put(f"label-{number:09d}".encode(), "".join(draw.choice(letters, 4)).encode())
