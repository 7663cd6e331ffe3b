"""Further tiny data for the programs of the wild corpus: pictures, tokens and models in the forms that their readers want."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np


def cifar10(folder: Path) -> None:
    """Make the files of CIFAR-10's Python version, with 200 and 40 pictures; each class has as many."""
    draw = np.random.default_rng(11)
    place = folder / "data" / "cifar-10-batches-py"
    place.mkdir(parents=True)
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        content = {"data": draw.integers(0, 255, (40, 3072), dtype=np.uint8), "labels": [n % 10 for n in range(40)]}
        (place / name).write_bytes(pickle.dumps(content))


def lmdb_pictures(folder: Path) -> None:
    """Make an LMDB data base of 64 pictures of 16 x 16, and the folders into which StyleGAN2 writes."""
    import lmdb
    from PIL import Image

    draw = np.random.default_rng(12)
    for name in ("sample", "checkpoint"):
        (folder / name).mkdir()
    with lmdb.open(str(folder / "pictures"), map_size=1 << 24) as base, base.begin(write=True) as transaction:
        for number in range(64):
            encoded = io.BytesIO()
            Image.fromarray(draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(encoded, "PNG")
            transaction.put(f"16-{number:05}".encode(), encoded.getvalue())
        transaction.put(b"length", b"64")


def token_pairs(folder: Path) -> None:
    """Make lines of token numbers: a context and its completion."""
    draw = np.random.default_rng(13)
    for part, count in (("train", 80), ("valid", 16)):
        rows = [
            {"context": draw.integers(1, 400, 9).tolist(), "completion": draw.integers(1, 400, 12).tolist()}
            for _ in range(count)
        ]
        (folder / f"{part}.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def latents(folder: Path) -> None:
    """Make latents of 6 classes, as an encoder would leave them: 16 means and 16 deviations for each of 4 x 4 places."""
    draw = np.random.default_rng(14)
    for label in range(6):
        place = folder / "cached" / f"n{label:04}"
        place.mkdir(parents=True)
        for number in range(16):
            moments = draw.normal(size=(32, 4, 4)).astype(np.float32)
            np.savez(place / f"{number}.npz", moments=moments, moments_flip=moments[:, :, ::-1].copy())


def byte_tokenizer(folder: Path) -> None:
    """Make nanochat's base folder: a tokenizer of bytes, how many bytes each token has, and texts in parquet files."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    import tiktoken
    import torch
    from tiny_data import text

    specials = ("bos", "user_start", "user_end", "assistant_start", "assistant_end")
    specials += ("python_start", "python_end", "output_start", "output_end")
    encoding = tiktoken.Encoding(
        name="bytes",
        pat_str=r"\w+|\W+",
        mergeable_ranks={bytes([number]): number for number in range(256)},
        special_tokens={f"<|{name}|>": 256 + number for number, name in enumerate(specials)},
    )
    place = folder / "base" / "tokenizer"
    place.mkdir(parents=True)
    (place / "tokenizer.pkl").write_bytes(pickle.dumps(encoding))
    torch.save(torch.tensor([1] * 256 + [0] * len(specials), dtype=torch.int32), place / "token_bytes.pt")
    shards = folder / "base" / "base_data_climbmix"
    shards.mkdir()
    for shard in range(2):
        table = pa.table({"text": [text(9 + n % 20, 1000 * shard + n) for n in range(240)]})
        pq.write_table(table, shards / f"shard_{shard:05}.parquet", row_group_size=20)


def tiny_stable_diffusion(folder: Path) -> None:
    """Make a Stable Diffusion model of some thousand parameters as a local folder, and pictures of one thing."""
    import torch
    from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
    from PIL import Image
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

    torch.manual_seed(15)
    model = folder / "model"
    letters = [chr(number) for number in range(33, 127)]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = folder / "vocabulary"
    vocabulary.mkdir()
    (vocabulary / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (vocabulary / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CLIPTokenizer.from_pretrained(str(vocabulary), model_max_length=32)
    tokenizer.save_pretrained(model / "tokenizer")
    sizes: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    CLIPTextModel(
        CLIPTextConfig(
            vocab_size=len(words),
            num_attention_heads=2,
            max_position_embeddings=32,
            bos_token_id=len(words) - 2,
            eos_token_id=len(words) - 1,
            pad_token_id=len(words) - 1,
            **sizes,
        )
    ).save_pretrained(model / "text_encoder")
    AutoencoderKL(block_out_channels=(8,), norm_num_groups=4, latent_channels=4).save_pretrained(model / "vae")
    UNet2DConditionModel(
        sample_size=16, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, cross_attention_dim=16,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), attention_head_dim=4,
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    ).save_pretrained(model / "unet")  # fmt: skip
    DDPMScheduler(num_train_timesteps=100).save_pretrained(model / "scheduler")
    parts: dict[str, Any] = {
        "_class_name": "StableDiffusionPipeline",
        "requires_safety_checker": False,
        "vae": ["diffusers", "AutoencoderKL"],
        "text_encoder": ["transformers", "CLIPTextModel"],
        "tokenizer": ["transformers", "CLIPTokenizer"],
        "unet": ["diffusers", "UNet2DConditionModel"],
        "scheduler": ["diffusers", "DDPMScheduler"],
        "safety_checker": [None, None],
        "feature_extractor": [None, None],
    }
    (model / "model_index.json").write_text(json.dumps(parts))
    draw = np.random.default_rng(15)
    (folder / "thing").mkdir()
    for number in range(6):
        Image.fromarray(draw.integers(0, 255, (16, 16, 3), dtype=np.uint8)).save(folder / "thing" / f"{number}.png")


def tiny_vit(folder: Path) -> None:
    """Make a vision transformer of some thousand parameters that tells 6 classes of 32 x 32 pictures, as a local folder."""
    import torch
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    torch.manual_seed(22)
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    config = ViTConfig(image_size=32, patch_size=8, num_labels=6, hidden_dropout_prob=0.1, **sizes)
    ViTForImageClassification(config).save_pretrained(folder / "vit")
    ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(folder / "vit")


def picotron_run(folder: Path) -> None:
    """Put the tiny language model to where picotron would download one, and write its configuration of two replicas."""
    from tiny_data import tiny_llama

    tiny_llama(folder)
    for name, wanted in (("hf_model/model", "config.json"), ("hf_model_safetensors", "model.safetensors")):
        (folder / name).mkdir(parents=True)
        (folder / name / wanted).write_bytes((folder / "model" / wanted).read_bytes())
    content = {
        "distributed": {
            "tp_size": 1, "cp_size": 1, "pp_size": 1, "dp_size": 2, "pp_engine": "1f1b", "backend": "gloo", "use_cpu": True,
        },
        "model": {"name": "model", "dtype": "float32", "use_flash_attention": False, "use_fused_adam": True},
        "training": {
            "seed": 42, "learning_rate": 0.003, "total_train_steps": 30, "seq_length": 16, "micro_batch_size": 4,
            "gradient_accumulation_steps": 2, "num_samples": 160, "max_tokens": None,
        },
        "dataset": {"name": "texts", "subset_name": None, "num_workers": 0, "num_proc": 1},
        "checkpoint": {"save_dir": "ckpt", "save_frequency": 10, "load_path": ""},
        "logging": {"use_wandb": False, "project_name": "picotron", "run_name": None},
        "environment": {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "FLASH_ATTEN": "0", "HF_TOKEN": "none"},
    }  # fmt: skip
    (folder / "tiny.json").write_text(json.dumps(content))


def picture_pairs(folder: Path) -> None:
    """Make pictures and small ones of them, BasicSR's options for a generator and a discriminator, and its version file."""
    from PIL import Image

    draw = np.random.default_rng(23)
    for part, count in (("train", 32), ("val", 3)):
        for kind in ("large", "small"):
            (folder / "pairs" / part / kind).mkdir(parents=True)
        for number in range(count):
            small = draw.integers(0, 255, (12, 12, 3), dtype=np.uint8)
            Image.fromarray(small).save(folder / "pairs" / part / "small" / f"{number:02}.png")
            large = np.kron(small, np.ones((4, 4, 1), dtype=np.uint8))
            Image.fromarray(large).save(folder / "pairs" / part / "large" / f"{number:02}.png")

    def pairs(part: str, **further: Any) -> dict[str, Any]:
        place = {"dataroot_gt": f"pairs/{part}/large", "dataroot_lq": f"pairs/{part}/small"}
        return {"name": part, "type": "PairedImageDataset", "io_backend": {"type": "disk"}, **place, **further}

    adam = {"type": "Adam", "lr": 0.0002, "weight_decay": 0, "betas": [0.9, 0.99]}
    metrics = {
        name: {"type": f"calculate_{name}", "crop_border": 4, "test_y_channel": False} for name in ("psnr", "ssim")
    }
    options = {
        "name": "tiny", "model_type": "SRGANModel", "scale": 4, "num_gpu": 0, "manual_seed": 0,
        "datasets": {
            "train": pairs(
                "train", filename_tmpl="{}", gt_size=32, use_hflip=True, use_rot=True, num_worker_per_gpu=0,
                batch_size_per_gpu=4, dataset_enlarge_ratio=3, prefetch_mode=None,
            ),
            "val": pairs("val"),
        },
        "network_g": {"type": "MSRResNet", "num_in_ch": 3, "num_out_ch": 3, "num_feat": 8, "num_block": 2, "upscale": 4},
        "network_d": {"type": "UNetDiscriminatorSN", "num_in_ch": 3, "num_feat": 4, "skip_connection": True},
        "path": {"pretrain_network_g": None, "strict_load_g": True, "resume_state": None},
        "train": {
            "ema_decay": 0.9, "optim_g": adam, "optim_d": dict(adam), "total_iter": 24, "warmup_iter": 4,
            "scheduler": {"type": "MultiStepLR", "milestones": [8, 16], "gamma": 0.5},
            "pixel_opt": {"type": "L1Loss", "loss_weight": 1.0, "reduction": "mean"},
            "gan_opt": {
                "type": "GANLoss", "gan_type": "vanilla", "real_label_val": 1.0, "fake_label_val": 0.0, "loss_weight": 0.1,
            },
            "net_d_iters": 1, "net_d_init_iters": 0,
        },
        "val": {"val_freq": 8, "save_img": True, "metrics": metrics},
        "logger": {"print_freq": 1, "save_checkpoint_freq": 10, "use_tb_logger": True, "wandb": {"project": None}},
        "dist_params": {"backend": "gloo", "port": 29500},
    }  # fmt: skip
    (folder / "tiny.yml").write_text(json.dumps(options))
    version = '__version__ = "1.4.2"\n__gitsha__ = "unknown"\nversion_info = (1, 4, 2)\n'
    (folder / "basicsr" / "version.py").write_text(version)


def molecules(folder: Path) -> None:
    """Make configurations of water with energies and forces, and the two atoms alone, in extended XYZ."""
    from ase import Atoms, io

    draw = np.random.default_rng(24)
    rows = []
    for number in (8, 1):
        atom = Atoms(numbers=[number], positions=[[0, 0, 0]], cell=[6] * 3)
        atom.info.update(REF_energy=0.0, config_type="IsolatedAtom")
        rows.append(atom)
    for _ in range(56):
        positions = np.array([[0, -2.0, 0], [1, 0, 0], [0, 1, 0]]) + draw.normal(0, 0.1, (3, 3))
        water = Atoms(numbers=[8, 1, 1], positions=positions, cell=[4] * 3, pbc=[True] * 3)
        water.info["REF_energy"] = float(draw.normal(0, 0.1))
        water.new_array("REF_forces", draw.normal(0, 0.1, (3, 3)))
        rows.append(water)
    io.write(folder / "water.xyz", rows, format="extxyz")


def ddpm_config(folder: Path) -> None:
    """Write the configuration of a tiny diffusion model of MNIST's pictures."""
    content = {
        "dataset": "mnist",
        "diffusion": {
            "timesteps": 20, "beta_start": 0.0001, "beta_end": 0.02, "beta_schedule": "linear", "model_mean_type": "eps",
            "model_var_type": "fixed-large", "loss_type": "mse",
        },
        "model": {
            "hid_channels": 32, "ch_multipliers": [1, 1], "num_res_blocks": 1, "drop_rate": 0.1,
            "apply_attn": [False, True],
        },
        "train": {
            "lr": 0.002, "batch_size": 16, "grad_norm": 1.0, "epochs": 2, "warmup": 10, "image_intv": 1, "num_samples": 4,
            "use_ema": True, "ema_decay": 0.99,
        },
    }  # fmt: skip
    (folder / "tiny.json").write_text(json.dumps(content))


def litgpt_model(folder: Path) -> None:
    """Make a tiny model in litgpt's form, and questions with answers."""
    import torch
    from tiny_data import text, tiny_llama

    tiny_llama(folder)
    import sys

    sys.path.insert(0, str(folder))
    from litgpt import GPT, Config

    sizes: dict[str, Any] = {"n_layer": 2, "n_head": 2, "n_embd": 16, "block_size": 64, "intermediate_size": 32}
    config = Config(
        name="tiny", vocab_size=34, padded_vocab_size=64, rotary_percentage=1.0, parallel_residual=False, bias=False,
        norm_class_name="RMSNorm", mlp_class_name="LLaMAMLP", **sizes,
    )  # fmt: skip
    from litgpt.utils import save_config

    torch.manual_seed(25)
    torch.save(GPT(config).state_dict(), folder / "model" / "lit_model.pth")
    save_config(config, folder / "model")
    rows = [{"instruction": text(4, n), "input": "", "output": text(5, n + 500)} for n in range(96)]
    (folder / "questions.json").write_text(json.dumps(rows))


def imagenette(folder: Path) -> None:
    """Make pictures in a folder, and the file that says which class each has, and which are for validation."""
    from PIL import Image

    draw = np.random.default_rng(26)
    rows = ["path,noisy_labels_0,is_valid"]
    for number in range(120):
        part, label = "val" if number // 10 % 5 == 4 else "train", f"n{number % 10:02}"
        place = folder / "imagenette" / part / label
        place.mkdir(parents=True, exist_ok=True)
        pixels = draw.integers(0, 255, (40, 40, 3), dtype=np.uint8)
        pixels[:, :, number % 3] //= 2
        Image.fromarray(pixels).save(place / f"{number}.png")
        rows.append(f"{part}/{label}/{number}.png,{label},{part == 'val'}")
    (folder / "imagenette" / "noisy_imagenette.csv").write_text("\n".join(rows) + "\n")


def captions(folder: Path) -> None:
    """Make pictures with a text for each, in the form of a folder with a file of what is known of them."""
    from PIL import Image
    from tiny_data import text

    draw = np.random.default_rng(21)
    place = folder / "captioned"
    place.mkdir()
    rows = []
    for number in range(80):
        Image.fromarray(draw.integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(place / f"{number:02}.png")
        rows.append({"file_name": f"{number:02}.png", "text": text(3, number)})
    (place / "metadata.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def boxes(folder: Path) -> None:
    """Make pictures with a label file of boxes for each, and the description that YOLOv5 reads."""
    from PIL import Image

    draw = np.random.default_rng(16)
    for part, count in (("train", 48), ("val", 8)):
        for kind in ("images", "labels"):
            (folder / "boxes" / kind / part).mkdir(parents=True)
        for number in range(count):
            pixels = draw.integers(0, 255, (64, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "boxes" / "images" / part / f"{number}.png")
            lines = [
                f"{number % 3} {draw.uniform(0.3, 0.7):.3f} {draw.uniform(0.3, 0.7):.3f} 0.3 0.4" for _ in range(2)
            ]
            (folder / "boxes" / "labels" / part / f"{number}.txt").write_text("\n".join(lines) + "\n")
    description = {"path": "boxes", "train": "images/train", "val": "images/val", "names": ["a", "b", "c"]}
    (folder / "boxes.yaml").write_text(json.dumps(description))


def lines(folder: Path) -> None:
    """Make lines of text in three parts, and a sentencepiece model of their words."""
    import sentencepiece
    from tiny_data import text

    place = folder / "lines"
    place.mkdir()
    for part, first, count in (("train", 0, 80), ("valid", 200, 8), ("test", 300, 8)):
        content = [text(6 + n % 5, first + n) for n in range(count)]
        (place / f"{part}.txt").write_text("\n".join(content) + "\n")
    sentencepiece.SentencePieceTrainer.train(
        input=str(place / "train.txt"), model_prefix=str(place / "tokens"), vocab_size=32, model_type="unigram",
        num_threads=1, minloglevel=2,
    )  # fmt: skip


def image_codes(folder: Path) -> None:
    """Make codes of 96 pictures, as a tokenizer would leave them: of each two views, 256 numbers below 64."""
    draw = np.random.default_rng(17)
    codes, labels = (folder / "codes_flip" / f"imagenet256_{kind}" for kind in ("codes", "labels"))
    for place in (codes, labels):
        place.mkdir(parents=True)
    for number in range(96):
        np.save(codes / f"{number}.npy", draw.integers(0, 64, (1, 2, 256)))
        np.save(labels / f"{number}.npy", np.array([number % 6]))


def token_tensors(folder: Path) -> None:
    """Make two folders of texts as tensors of token numbers, and a tiny set of BEIR for retrieval."""
    import torch
    from tiny_data import text

    draw = np.random.default_rng(18)
    for name in ("first", "second"):
        (folder / "tokens" / name).mkdir(parents=True)
        for part in range(2):
            numbers = torch.from_numpy(draw.integers(5, 35, 671, dtype=np.int32))
            torch.save(numbers, folder / "tokens" / name / f"{part}.pkl")
    place = folder / "beir" / "tiny"
    (place / "qrels").mkdir(parents=True)
    corpus = [{"_id": f"d{n}", "title": text(2, 700 + n), "text": text(12, 800 + n)} for n in range(24)]
    queries = [{"_id": f"q{n}", "text": text(5, 800 + n)} for n in range(8)]
    for part, rows in (("corpus", corpus), ("queries", queries)):
        (place / f"{part}.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    pairs = ["query-id\tcorpus-id\tscore", *(f"q{n}\td{n}\t1" for n in range(8))]
    (place / "qrels" / "test.tsv").write_text("\n".join(pairs) + "\n")


def tiny_vqvae(folder: Path) -> None:
    """Make the weights of VAR's own VQ-VAE, with the sizes that the manifest gives it."""
    import sys

    import torch

    sys.path.insert(0, str(folder))
    from models import VQVAE

    torch.set_num_threads(1)  # with more, MKL sometimes fails to load itself
    torch.manual_seed(19)
    model = VQVAE(vocab_size=64, z_channels=8, ch=32, test_mode=True, share_quant_resi=4, v_patch_nums=(1, 2, 3))
    torch.save(model.state_dict(), folder / "vae_ch160v4096z32.pth")
