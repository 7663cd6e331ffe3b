"""Tiny data for programs of the wild corpus of which nobody here had run any: adapters, trackers, rollouts, masks."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np


def things_told(folder: Path) -> None:
    """Make a list of pictures of `thing` with what they show, and the encoder of pictures that would be downloaded."""
    import torch
    from transformers import CLIPVisionConfig, CLIPVisionModelWithProjection

    told = [{"image_file": f"{number % 6}.png", "text": f"a thing {number}"} for number in range(48)]
    (folder / "things.json").write_text(json.dumps(told))
    torch.manual_seed(111)
    config = CLIPVisionConfig(
        hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, image_size=224, patch_size=56,
        projection_dim=16,
    )  # fmt: skip
    CLIPVisionModelWithProjection(config).save_pretrained(folder / "encoder")


def crawled_texts(folder: Path) -> None:
    """Make texts in the form of C4, in eight files, and a small T5's settings with a tokenizer of whole words."""
    from tiny_data import _tokenizer, text
    from transformers import T5Config

    for part, files in (("train", 8), ("validation", 2)):
        (folder / "c4" / part).mkdir(parents=True)
        for number in range(files):
            rows = [
                {
                    "text": text(90 + n % 30, 1000 * number + n),
                    "timestamp": "2019-04-25T12:57:54Z",
                    "url": f"http://{n}",
                }
                for n in range(40)
            ]
            (folder / "c4" / part / f"{number}.json").write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    tokenizer = _tokenizer({"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "</s>"})
    tokenizer.save_pretrained(folder / "t5")
    T5Config(
        vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_decoder_layers=2, num_heads=2,
        feed_forward_proj="gated-gelu", tie_word_embeddings=False, pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id, decoder_start_token_id=tokenizer.pad_token_id,
    ).save_pretrained(folder / "t5")  # fmt: skip


ROLLOUT = '''import os

import torch
from rsl_rl.env import VecEnv
from rsl_rl.runners import OnPolicyRunner
from tensordict import TensorDict


class Carts(VecEnv):
    """Carts that are to be kept in the middle by a force; each one starts anew where it has left, or after 20 steps."""

    def __init__(self, count):
        self.num_envs, self.num_actions, self.max_episode_length = count, 1, 20
        self.device, self.cfg = "cpu", {}
        self.episode_length_buf = torch.zeros(count, dtype=torch.long)
        self.place = torch.rand(count) - 0.5
        self.speed = torch.zeros(count)

    def get_observations(self):
        seen = torch.stack([self.place, self.speed], 1)
        return TensorDict({"policy": seen}, batch_size=[self.num_envs])

    def step(self, actions):
        self.episode_length_buf += 1
        self.speed += 0.1 * actions[:, 0].clamp(-1, 1) + 0.02 * torch.randn(self.num_envs)
        self.place += 0.1 * self.speed
        late = self.episode_length_buf >= self.max_episode_length
        done = late | (self.place.abs() > 1)
        reward = 1 - self.place.abs()
        count = int(done.sum())
        self.place[done] = torch.rand(count) - 0.5
        self.speed[done] = 0
        self.episode_length_buf[done] = 0
        return self.get_observations(), reward, done.float(), {"time_outs": late.float(), "log": {"/far": reward.mean()}}


def settings():
    network = {"class_name": "MLPModel", "hidden_dims": [16, 16], "activation": "elu", "obs_normalization": True}
    return {
        "num_steps_per_env": 12,
        "save_interval": 3,
        "obs_groups": {"actor": ["policy"], "critic": ["policy"]},
        "algorithm": {"class_name": "PPO", "num_learning_epochs": 2, "num_mini_batches": 2},
        "actor": {**network, "distribution_cfg": {"class_name": "GaussianDistribution"}},
        "critic": network,
    }


if __name__ == "__main__":
    torch.manual_seed(42 + int(os.environ["RANK"]))
    runner = OnPolicyRunner(Carts(8), settings(), log_dir="logs", device="cpu")
    runner.learn(num_learning_iterations=8, init_at_random_ep_len=True)
    torch.distributed.destroy_process_group()
'''


def carts(folder: Path) -> None:
    """Write the script that rsl_rl asks its users for: an environment, settings, a runner that learns."""
    (folder / "train.py").write_text(ROLLOUT)


def cats_and_dogs(folder: Path) -> None:
    """Make pictures of two kinds in the folders that an archive would be unpacked to."""
    from PIL import Image

    draw = np.random.default_rng(113)
    for part, each in (("train", 24), ("validation", 4)):
        for kind in ("cats", "dogs"):
            place = folder / "data" / "cats_and_dogs_filtered" / part / kind
            place.mkdir(parents=True)
            for number in range(each):
                Image.fromarray(draw.integers(0, 255, (40, 40, 3), dtype=np.uint8)).save(place / f"{number}.jpg")


def outlined_things(folder: Path) -> None:
    """Make pictures with masks of classes, as PASCAL VOC has them."""
    from PIL import Image

    draw = np.random.default_rng(114)
    place = folder / "voc" / "VOC2012"
    for name in ("JPEGImages", "SegmentationClass", "ImageSets/Segmentation"):
        (place / name).mkdir(parents=True)
    for part, first, count in (("train", 0, 64), ("val", 64, 8)):
        names = [f"2007_{number:06}" for number in range(first, first + count)]
        (place / "ImageSets" / "Segmentation" / f"{part}.txt").write_text("\n".join(names) + "\n")
        for name in names:
            Image.fromarray(draw.integers(0, 255, (44, 52, 3), dtype=np.uint8)).save(
                place / "JPEGImages" / f"{name}.jpg"
            )
            mask = np.kron(draw.integers(0, 21, (11, 13)), np.ones((4, 4))).astype(np.uint8)
            mask[:2] = 255
            Image.fromarray(mask).save(place / "SegmentationClass" / f"{name}.png")


def sizes_to_search(folder: Path) -> None:
    """Write the settings of AutoFormer for a small network and the sizes that its parts may have."""
    import yaml

    settings = {
        "SUPERNET": {"MLP_RATIO": 2.0, "NUM_HEADS": 3, "EMBED_DIM": 192, "DEPTH": 3},
        "SEARCH_SPACE": {"MLP_RATIO": [1, 2], "NUM_HEADS": [2, 3], "DEPTH": [1, 2, 3], "EMBED_DIM": [96, 144, 192]},
    }
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))


def llama_of_old(folder: Path) -> None:
    """Make LLaMA's first files for a small model: sizes, no weights, and a tokenizer that knows the prompt's words."""
    import sentencepiece
    import torch

    place = folder / "llama7"
    (place / "7B").mkdir(parents=True)
    sizes = {"dim": 32, "multiple_of": 8, "n_heads": 2, "n_layers": 3, "norm_eps": 1e-6, "vocab_size": -1}
    (place / "7B" / "params.json").write_text(json.dumps(sizes))
    torch.save({}, place / "7B" / "consolidated.00.pth")
    told = json.loads((folder / "instructions.json").read_text())
    prompt = (
        "Below is an instruction that describes a task, paired with an input that provides further context. "
        "Write a response that appropriately completes the request. ### Instruction: ### Input: ### Response:"
    )
    lines = [prompt] * 20 + [f"{row['instruction']} {row['input']} {row['output']}" for row in told]
    (place / "lines.txt").write_text("\n".join(lines) + "\n")
    sentencepiece.SentencePieceTrainer.train(
        input=str(place / "lines.txt"), model_prefix=str(place / "tokenizer"), vocab_size=120, model_type="bpe",
        hard_vocab_limit=False, num_threads=1, minloglevel=2,
    )  # fmt: skip


def tracked_things(folder: Path) -> None:
    """Make pieces of videos around a thing that moves, and PySOT's settings for a small tracker."""
    import yaml
    from PIL import Image

    draw, boxes = np.random.default_rng(117), random.Random(117)
    place = folder / "training_dataset" / "vid"
    told: dict[str, dict[str, dict[str, list[int]]]] = {}
    for number in range(8):
        video = f"train/video{number}"
        (place / "crop511" / video).mkdir(parents=True)
        told[video] = {"00": {}}
        for frame in range(4):
            coarse = np.kron(draw.integers(0, 255, (73, 73, 3)), np.ones((7, 7, 1))).astype(np.uint8)
            Image.fromarray(coarse).save(place / "crop511" / video / f"{frame:06}.00.x.jpg")
            left, top = boxes.randrange(60), boxes.randrange(60)
            told[video]["00"][f"{frame:06}"] = [left, top, left + 60 + 3 * frame, top + 80]
    (place / "train.json").write_text(json.dumps(told))
    steps = {"start_lr": 0.001, "end_lr": 0.005, "step": 1}
    settings = {
        "META_ARC": "siamrpn_alex_dwxcorr",
        "BACKBONE": {
            "TYPE": "alexnet", "KWARGS": {"width_mult": 0.0625}, "TRAIN_LAYERS": ["layer4", "layer5"],
            "TRAIN_EPOCH": 2, "LAYERS_LR": 0.1,
        },
        "ADJUST": {"ADJUST": False},
        "RPN": {"TYPE": "DepthwiseRPN", "KWARGS": {"anchor_num": 5, "in_channels": 16, "out_channels": 16}},
        "MASK": {"MASK": False},
        "ANCHOR": {"STRIDE": 8, "RATIOS": [0.33, 0.5, 1, 2, 3], "SCALES": [8], "ANCHOR_NUM": 5},
        "TRAIN": {
            "EPOCH": 4, "START_EPOCH": 0, "BATCH_SIZE": 2, "BASE_SIZE": 0, "OUTPUT_SIZE": 17, "NUM_WORKERS": 1,
            "PRINT_FREQ": 2, "LOG_GRADS": True, "LOG_DIR": "./logs", "SNAPSHOT_DIR": "./snapshot",
            "LR": {"TYPE": "log", "KWARGS": {"start_lr": 0.005, "end_lr": 0.0005}},
            "LR_WARMUP": {"WARMUP": True, "TYPE": "step", "EPOCH": 1, "KWARGS": steps},
        },
        "DATASET": {
            "NAMES": ["VID"], "VIDEOS_PER_EPOCH": 32,
            "VID": {"ROOT": "training_dataset/vid/crop511", "ANNO": "training_dataset/vid/train.json", "NUM_USE": 32},
        },
    }  # fmt: skip
    (folder / "tiny.yaml").write_text(yaml.safe_dump(settings))
