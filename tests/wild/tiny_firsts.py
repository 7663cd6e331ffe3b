"""Tiny data for programs of the wild corpus: puzzles, thoughts in steps, faces by name, token numbers behind a header."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np


def numbered_tokens(folder: Path) -> None:
    """Make token numbers below 255 as llm.c reads them: 256 numbers of four bytes first, which say how many there are."""
    draw = np.random.default_rng(181)
    for part, count in (("train", 4000), ("val", 800)):
        header = np.zeros(256, dtype=np.int32)
        header[:3] = 20240520, 1, count
        with (folder / f"{part}.bin").open("wb") as out:
            out.write(header.tobytes() + draw.integers(0, 255, count).astype(np.uint16).tobytes())


def puzzles(folder: Path) -> None:
    """Make puzzles of 12 places and their solutions, each a group of its own."""
    draw = np.random.default_rng(182)
    for part, count in (("train", 32), ("test", 8)):
        place = folder / "data" / "puzzles" / part
        place.mkdir(parents=True)
        says = {
            "pad_id": 0, "ignore_label_id": 0, "blank_identifier_id": 0, "vocab_size": 11, "seq_len": 12,
            "num_puzzle_identifiers": 1, "total_groups": count, "mean_puzzle_examples": 1, "total_puzzles": count,
            "sets": ["all"],
        }  # fmt: skip
        (place / "dataset.json").write_text(json.dumps(says))
        solved = draw.integers(2, 11, (count, 12))
        asked = np.where(draw.random((count, 12)) < 0.5, 1, solved)
        steps = np.arange(count + 1, dtype=np.int32)
        for name, values in (
            ("inputs", asked.astype(np.uint8)), ("labels", solved.astype(np.uint8)),
            ("puzzle_identifiers", np.zeros(count, dtype=np.int32)), ("puzzle_indices", steps), ("group_indices", steps),
        ):  # fmt: skip
            np.save(place / f"all__{name}.npy", values)


def thoughts_in_steps(folder: Path) -> None:
    """Make questions with steps of thought and answers, a tiny language model, and settings of Coconut for it."""
    import yaml
    from tiny_data import text, tiny_llama

    tiny_llama(folder)
    (folder / "data").mkdir(exist_ok=True)
    for part, count in (("train", 48), ("valid", 4)):
        rows = [
            {"question": text(5 + n % 3, n), "steps": [text(3, 500 + n), text(4, 700 + n)], "answer": text(1, 900 + n)}
            for n in range(count)
        ]
        (folder / "data" / f"gsm_{part}.json").write_text(json.dumps(rows))
    settings = {
        "project": "tiny", "save_path": "out", "name": "tiny", "only_eval": False, "coconut": True, "cot": False,
        "no_thoughts": False, "no_cot": False, "c_thought": 1, "epochs_per_stage": 1, "max_latent_stage": 2,
        "pad_latent_to_max": True, "save_only_improve": False, "uniform_prob": 0.0, "model_id": "model",
        "load_model_path": "None", "seed": 3, "resume": 0, "bf16": False, "train_path": "data/gsm_train.json",
        "val_path": "data/gsm_valid.json", "reset_optimizer": True, "batch_size_training": 4, "debug": False,
        "gradient_accumulation_steps": 1, "num_epochs": 4, "lr": 0.001, "weight_decay": 0.01,
    }  # fmt: skip
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))


def faces_by_name(folder: Path) -> None:
    """Make pictures of 6 people, a list of them, and pairs that are compared."""
    from PIL import Image

    draw = np.random.default_rng(184)
    lines, pairs = [], ["10\t300"]
    for person in range(6):
        for place in (folder / "faces" / f"p{person}", folder / "lfw" / f"p{person}"):
            place.mkdir(parents=True)
        for n in range(1, 21):
            name = f"faces/p{person}/{n}.jpg"
            Image.fromarray(draw.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(folder / name)
            lines.append(f"{person};{name}")
        for n in range(1, 5):
            picture = draw.integers(0, 255, (64, 64, 3), dtype=np.uint8)
            Image.fromarray(picture).save(folder / "lfw" / f"p{person}" / f"p{person}_{n:04}.jpg")
            pairs.append(f"p{person}\t{n}\t{n % 4 + 1}" if n % 2 else f"p{person}\t{n}\tp{(person + 1) % 6}\t{n}")
    (folder / "cls_train.txt").write_text("\n".join(lines) + "\n")
    (folder / "model_data").mkdir(exist_ok=True)
    (folder / "model_data" / "lfw_pair.txt").write_text("\n".join(pairs) + "\n")


def preferred_answers(folder: Path) -> None:
    """Make prompts with an answer that is preferred and one that is not, and a tiny model with its way to write talks down."""
    from tiny_arrivals import asked_model
    from tiny_data import text

    asked_model(folder)
    place = folder / "preferences"
    place.mkdir()
    for part, count in (("train", 96), ("test", 16)):
        rows = []
        for n in range(count):
            asked, better, worse = text(5, n), text(6 + n % 3, 1000 + n), text(6 + n % 4, 2000 + n)
            talks = [[{"role": "user", "content": asked}, {"role": "assistant", "content": s}] for s in (better, worse)]
            rows.append({"chosen": talks[0], "rejected": talks[1]})
        (place / f"{part}.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")


MASKGIT = """import torch
from muse_maskgit_pytorch import VQGanVAE, VQGanVAETrainer

if __name__ == '__main__':
    torch.manual_seed(3)
    vae = VQGanVAE(dim=16, codebook_size=64, layers=2, discr_layers=2)
    trainer = VQGanVAETrainer(
        vae=vae, image_size=16, folder='pictures', batch_size=4, grad_accum_every=2, num_train_steps=24,
        max_grad_norm=1.0, discr_max_grad_norm=1.0, save_results_every=8, save_model_every=8, results_folder='out',
    )
    trainer.train()
"""


def maskgit_script(folder: Path) -> None:
    """Make pictures, a small network that says what is alike, and the script that muse-maskgit-pytorch asks its users for."""
    import torch
    from PIL import Image

    draw = np.random.default_rng(186)
    (folder / "pictures").mkdir()
    for number in range(96):
        Image.fromarray(draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(
            folder / "pictures" / f"{number:03}.png"
        )
    torch.manual_seed(186)
    layers = (
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 8),
    )
    torch.save(torch.nn.Sequential(*layers), folder / "vgg.pt")
    (folder / "train.py").write_text(MASKGIT)


def measured_molecules(folder: Path) -> None:
    """Make molecules with two measured values each, and the script that chemprop's command is."""
    draw = np.random.default_rng(187)
    rows = ["smiles,solubility,weight"]
    for n in range(120):
        chain = "".join(str(draw.choice(["C", "CC", "C(C)", "C(=O)", "CO", "CN", "C(F)"])) for _ in range(2 + n % 4))
        ends = str(draw.choice(["C", "O", "N", "c1ccccc1", "Cl"]))
        rows.append(f"C{chain}{ends},{draw.normal():.4f},{draw.normal():.4f}")
    (folder / "molecules.csv").write_text("\n".join(rows) + "\n")
    (folder / "train.py").write_text("from chemprop.cli.main import main\n\nif __name__ == '__main__':\n    main()\n")


def clean_and_noisy_speech(folder: Path) -> None:
    """Make sounds twice, without and with noise."""
    import soundfile

    draw = np.random.default_rng(188)
    for part, count in (("train", 48), ("valid", 8)):
        for kind in ("clean", "noisy"):
            (folder / "sounds" / part / kind).mkdir(parents=True)
        for n in range(count):
            clean = np.sin(np.arange(1600 + 40 * n) * (0.05 + 0.002 * n)) * 0.4
            noisy = clean + draw.normal(0, 0.1, len(clean))
            for kind, sound in (("clean", clean), ("noisy", noisy)):
                soundfile.write(folder / "sounds" / part / kind / f"{n:02}.wav", sound.astype(np.float32), 16000)


def instructions_for_mistral(folder: Path) -> None:
    """Make instructions with answers, and a tiny Mistral model."""
    import torch
    from tiny_data import _tokenizer as tokenizer_of
    from tiny_data import text
    from transformers import MistralConfig, MistralForCausalLM

    tokenizer = tokenizer_of({"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<|pad|>"})
    torch.manual_seed(189)
    model = MistralForCausalLM(
        MistralConfig(
            vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=64, sliding_window=32,
        )
    )  # fmt: skip
    for part in (model, tokenizer):
        part.save_pretrained(folder / "model")
    (folder / "data").mkdir(exist_ok=True)
    for part, count in (("train", 120), ("validation", 16)):
        rows = [{"instruction": text(5 + n % 5, n), "output": text(6 + n % 9, 4000 + n)} for n in range(count)]
        (folder / "data" / f"{part}.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def reviewed_things(folder: Path) -> None:
    """Make reviews of 40 things by 30 people, packed as Amazon's are, and genrec's settings for a small SASRec."""
    import gzip

    draw = np.random.default_rng(190)
    place = folder / "dataset" / "amazon" / "raw" / "beauty"
    place.mkdir(parents=True)
    with gzip.open(place / "reviews_Beauty_5.json.gz", "wt") as out:
        for person in range(30):
            for n, thing in enumerate(draw.choice(40, 8 + person % 4, replace=False)):
                row = {"reviewerID": f"U{person:03}", "asin": f"A{thing:03}", "unixReviewTime": 1000 + 10 * n}
                out.write(json.dumps(row) + "\n")
    settings = {
        "epochs": 4, "batch_size": 16, "learning_rate": 0.005, "max_seq_len": 8, "embed_dim": 16, "ffn_dim": 32, "dropout": 0.2,
        "dataset_folder": "'dataset/amazon'", "split": "'{split}'", "eval_batch_size": 8, "save_dir_root": "'out'",
        "save_every_epoch": 2, "wandb_logging": False, "amp": True, "mixed_precision_type": "'bf16'",
    }  # fmt: skip
    lines = ["import genrec.data.amazon_sasrec", "import genrec.models.sasrec"]
    lines += [f"train.{name} = {value}" for name, value in settings.items()]
    (folder / "tiny.gin").write_text("\n".join(lines) + "\n")
