"""Tiny data for programs of the wild corpus that were chosen by how many use them: atoms, speech, shops, carts, classes."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np


def shopping_lists(folder: Path) -> None:
    """Make items with semantic ids, and what users have bought, in MiniOneRec's form."""
    from tiny_data import text

    draw = random.Random(121)
    place = folder / "shop"
    place.mkdir()
    ids = {str(n): [f"<a_{n % 3}>", f"<b_{n % 5}>", f"<c_{n}>"] for n in range(16)}
    items = {number: {"title": text(4, int(number)), "description": text(8, 50 + int(number))} for number in ids}
    (place / "tiny.index.json").write_text(json.dumps(ids))
    (place / "tiny.item.json").write_text(json.dumps(items))
    names = ("history_item_title", "item_title", "history_item_id", "item_id", "history_item_sid", "item_sid")
    for part, count in (("train", 40), ("valid", 12)):
        rows = ["\t".join(names)]
        for _ in range(count):
            *before, last = draw.sample(sorted(ids), 4)
            rows.append(
                "\t".join(
                    (
                        str([items[n]["title"] for n in before]),
                        items[last]["title"],
                        str([int(n) for n in before]),
                        last,
                        str(["".join(ids[n]) for n in before]),
                        "".join(ids[last]),
                    )
                )
            )
        (place / f"{part}.csv").write_text(_with_commas(rows))


def _with_commas(rows: list[str]) -> str:
    return "\n".join(",".join(f'"{cell}"' for cell in row.split("\t")) for row in rows) + "\n"


def shared_talks(folder: Path) -> None:
    """Make talks between a user and an assistant in ShareGPT's form, for training and for validation."""
    from tiny_data import text

    for part, count in (("train", 96), ("valid", 12)):
        (folder / "talks" / part).mkdir(parents=True)
        rows = []
        for n in range(count):
            said = [("human", text(6, 10 * n)), ("gpt", text(7, 10 * n + 1))]
            rows.append({"conversations": [{"from": who, "value": what} for who, what in said]})
        (folder / "talks" / part / "talks.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")


NEQUIP = """run: [train, test]
data:
  _target_: nequip.data.datamodule.ASEDataModule
  seed: 456
  split_dataset: {file_path: atoms.xyz, train: 0.8, val: 0.1, test: 0.1}
  transforms:
    - _target_: nequip.data.transforms.ChemicalSpeciesToAtomTypeMapper
      model_type_names: [C, H, O]
    - {_target_: nequip.data.transforms.NeighborListTransform, r_max: 4.0}
  train_dataloader: {_target_: torch.utils.data.DataLoader, batch_size: 5, num_workers: 1, shuffle: true}
  val_dataloader: {_target_: torch.utils.data.DataLoader, batch_size: 5, num_workers: 1}
  test_dataloader: ${data.val_dataloader}
  stats_manager:
    _target_: nequip.data.CommonDataStatisticsManager
    dataloader_kwargs: {batch_size: 10}
    type_names: [C, H, O]
trainer:
  _target_: lightning.Trainer
  accelerator: cpu
  devices: 2
  num_nodes: 1
  strategy: {_target_: nequip.train.SimpleDDPStrategy}
  enable_checkpointing: true
  max_epochs: 4
  log_every_n_steps: 2
  logger: {_target_: lightning.pytorch.loggers.CSVLogger, save_dir: "${hydra:runtime.output_dir}"}
  callbacks:
    - _target_: lightning.pytorch.callbacks.ModelCheckpoint
      monitor: val0_epoch/weighted_sum
      dirpath: ${hydra:runtime.output_dir}
      filename: best
      save_last: true
    - {_target_: lightning.pytorch.callbacks.LearningRateMonitor, logging_interval: epoch}
training_module:
  _target_: nequip.train.EMALightningModule
  ema_decay: 0.99
  loss: {_target_: nequip.train.EnergyForceLoss, per_atom_energy: true, coeffs: {total_energy: 1.0, forces: 1.0}}
  val_metrics:
    {_target_: nequip.train.EnergyForceMetrics, coeffs: {total_energy_mae: 1.0, forces_mae: 1.0}}
  train_metrics: ${training_module.val_metrics}
  test_metrics: ${training_module.val_metrics}
  optimizer: {_target_: torch.optim.Adam, lr: 0.01}
  lr_scheduler:
    scheduler: {_target_: torch.optim.lr_scheduler.ReduceLROnPlateau, factor: 0.6, patience: 1}
    monitor: val0_epoch/weighted_sum
    interval: epoch
    frequency: 1
  model:
    _target_: nequip.model.NequIPGNNModel
    compile_mode: eager
    seed: 456
    model_dtype: float32
    type_names: [C, H, O]
    r_max: 4.0
    num_bessels: 4
    num_layers: 2
    l_max: 1
    num_features: 4
    radial_mlp_depth: 1
    radial_mlp_width: 8
    avg_num_neighbors: ${training_data_stats:num_neighbors_mean}
    per_type_energy_scales: ${training_data_stats:per_type_forces_rms}
    per_type_energy_shifts: ${training_data_stats:per_atom_energy_mean}
    pair_potential: {_target_: nequip.nn.pair_potential.ZBL, units: metal, chemical_species: [C, H, O]}
"""


def moving_atoms(folder: Path) -> None:
    """Make molecules with energies and forces, as extended xyz, and a run of NequIP over them."""
    draw = np.random.default_rng(122)
    told = []
    for _ in range(80):
        places = np.array(((0, 0, 0), (1.2, 0, 0), (-0.6, 0.9, 0), (-0.6, -0.9, 0))) + draw.normal(0, 0.08, (4, 3))
        forces = draw.normal(0, 1, (4, 3))
        forces -= forces.mean(0)
        told += ["4", f'Properties=species:S:1:pos:R:3:forces:R:3 energy={draw.normal(-9, 1):.5f} pbc="F F F"']
        for kind, place, force in zip("COHH", places, forces):
            told.append(" ".join((kind, *(f"{v:.5f}" for v in (*place, *force)))))
    (folder / "atoms.xyz").write_text("\n".join(told) + "\n")
    (folder / "tiny.yaml").write_text(NEQUIP)


def told_sounds(folder: Path) -> None:
    """Make sounds with what is said in them, as a data set of F5-TTS."""
    from datasets import Dataset
    from tiny_data import text

    place = folder / "data" / "tiny_char"
    (place / "wavs").mkdir(parents=True)
    rows = []
    for number in range(64):
        seconds = 0.4 + 0.05 * (number % 8)
        path = place / "wavs" / f"{number}.wav"
        write_wave(path, 24000, seconds, 130 + number)
        rows.append({"audio_path": str(path), "text": text(3, number), "duration": seconds})
    Dataset.from_list(rows).save_to_disk(place / "raw")
    (place / "duration.json").write_text(json.dumps({"duration": [row["duration"] for row in rows]}))
    letters = sorted({letter for row in rows for letter in row["text"]} | {" "})
    (place / "vocab.txt").write_text("".join(f"{letter}\n" for letter in (" ", *(v for v in letters if v != " "))))


def write_wave(path: Path, rate: int, seconds: float, seed: int) -> None:
    """Write a sound of one channel: noise around a tone."""
    import wave

    draw = np.random.default_rng(seed)
    count = int(rate * seconds)
    values = np.sin(np.arange(count) * 2 * np.pi * draw.uniform(100, 900) / rate) + draw.normal(0, 0.2, count)
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        out.writeframes((values * 8000).clip(-32000, 32000).astype("<i2").tobytes())


def looked_for(folder: Path) -> None:
    """Make a table of pictures with labels, in which some are asked for and some are to be found."""
    from PIL import Image

    draw = np.random.default_rng(123)
    place = folder / "things"
    place.mkdir()
    rows = ["label,path,split,is_query,is_gallery,x_1,x_2,y_1,y_2"]
    for label in range(12):
        for number in range(6):
            pixels = draw.integers(0, 255, (40, 40, 3), dtype=np.uint8)
            pixels[:, :, label % 3] //= 2
            Image.fromarray(pixels).save(place / f"{label}_{number}.png")
            training = label < 8
            told = "," if training else "True,True"
            rows.append(f"{label},{label}_{number}.png,{'train' if training else 'validation'},{told},2,38,2,38")
    (place / "df_with_bboxes.csv").write_text("\n".join(rows) + "\n")


def steered_pictures(folder: Path) -> None:
    """Make pictures with captions and with pictures that steer, and a diffusion model that makes pictures an eighth in size."""
    import torch
    from diffusers import AutoencoderKL
    from PIL import Image
    from tiny_sets import tiny_stable_diffusion

    tiny_stable_diffusion(folder)
    torch.manual_seed(124)
    AutoencoderKL(
        block_out_channels=(4, 4, 4, 4), norm_num_groups=2, latent_channels=4, down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
    ).save_pretrained(folder / "model" / "vae")  # fmt: skip
    draw = np.random.default_rng(124)
    (folder / "steered").mkdir()
    rows = []
    for number in range(64):
        for kind in ("made", "steers"):
            pixels = draw.integers(0, 255, (128, 128, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "steered" / f"{kind}_{number}.png")
        rows.append(
            {
                "file_name": f"made_{number}.png",
                "conditioning_image_file_name": f"steers_{number}.png",
                "text": f"a thing {number}",
            }
        )
    (folder / "steered" / "metadata.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")


def cut_out_things(folder: Path) -> None:
    """Make pictures with masks of what stands out in them, for training and for tests."""
    from PIL import Image

    draw = np.random.default_rng(125)
    for part, count in (("DIS-TR", 24), ("DIS-VD", 4)):
        for kind in ("im", "gt"):
            (folder / "datasets" / "dis" / "DIS5K" / part / kind).mkdir(parents=True)
        for number in range(count):
            mask = np.zeros((64, 64), dtype=np.uint8)
            left, top = draw.integers(0, 30, 2)
            mask[top : top + 30, left : left + 30] = 255
            pixels = draw.integers(0, 120, (64, 64, 3), dtype=np.uint8) + (mask // 2)[:, :, None]
            where = folder / "datasets" / "dis" / "DIS5K" / part
            Image.fromarray(pixels.astype(np.uint8)).save(where / "im" / f"{number}.jpg")
            Image.fromarray(mask).save(where / "gt" / f"{number}.png")
    line = "    'DIS5K') epochs=4 && val_last=3 && step=2 ;;"  # the settings read from it when to save
    (folder / "train.sh").write_text(f"{line}\n")


FUNASR = """model: Transformer
model_conf: {ctc_weight: 0.3, lsm_weight: 0.1, length_normalized_loss: false}
encoder: TransformerEncoder
encoder_conf:
  {output_size: 16, attention_heads: 2, linear_units: 32, num_blocks: 2, dropout_rate: 0.1, input_layer: conv2d}
decoder: TransformerDecoder
decoder_conf: {attention_heads: 2, linear_units: 32, num_blocks: 1, dropout_rate: 0.1}
frontend: WavFrontend
frontend_conf: {fs: 16000, window: hamming, n_mels: 40, frame_length: 25, frame_shift: 10, lfr_m: 1, lfr_n: 1}
specaug: SpecAug
specaug_conf:
  apply_time_warp: true
  time_warp_window: 5
  time_warp_mode: bicubic
  apply_freq_mask: true
  freq_mask_width_range: [0, 10]
  num_freq_mask: 2
  apply_time_mask: true
  time_mask_width_range: [0, 10]
  num_time_mask: 2
train_conf:
  {accum_grad: 1, grad_clip: 5, max_epoch: 3, keep_nbest_models: 2, avg_nbest_model: 2, log_interval: 2}
optim: adam
optim_conf: {lr: 0.002}
scheduler: warmuplr
scheduler_conf: {warmup_steps: 10}
dataset: AudioDataset
dataset_conf:
  index_ds: IndexDSJsonl
  batch_sampler: BatchSampler
  batch_type: example
  batch_size: 4
  max_token_length: 2048
  buffer_size: 32
  shuffle: true
  num_workers: 1
tokenizer: CharTokenizer
tokenizer_conf: {unk_symbol: <unk>}
ctc_conf: {dropout_rate: 0.0, ctc_type: builtin, reduce: true, ignore_nan_grad: true}
normalize: null
"""


def heard_words(folder: Path) -> None:
    """Make sounds with what is said in them, and a recognizer's settings, in FunASR's form."""
    from tiny_data import text

    (folder / "heard").mkdir()
    letters: set[str] = set()
    for part, count in (("train", 64), ("valid", 8)):
        rows = []
        for number in range(count):
            path = folder / "heard" / f"{part}_{number}.wav"
            write_wave(path, 16000, 0.8 + 0.1 * (number % 4), 230 + number)
            said = text(2, number)
            letters |= set(said)
            rows.append(
                {
                    "key": f"{part}_{number}",
                    "source": str(path),
                    "source_len": 80,
                    "target": said,
                    "target_len": len(said),
                }
            )
        (folder / "heard" / f"{part}.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    tokens = ["<blank>", "<s>", "</s>", *sorted(letters), "<unk>"]
    (folder / "heard" / "tokens.json").write_text(json.dumps(tokens))
    (folder / "tiny.yaml").write_text(FUNASR)


def numbered_words(folder: Path) -> None:
    """Make arrays of token numbers, as OLMo-core reads them, for training and for evaluation."""
    draw = np.random.default_rng(126)
    (folder / "data").mkdir()
    for name, count in (("c4-train.00000-00099", 20000), ("c4-validation.00000-00008", 2000)):
        values = draw.integers(0, 298, count).astype(np.uint16)
        values[40::97] = 299  # the end of a text
        values.tofile(folder / "data" / f"{name}.npy")


def answered_questions(folder: Path) -> None:
    """Make questions with answers as parquet, and a small language model whose tokenizer knows talks."""
    import pandas
    from tiny_data import text, tiny_llama

    tiny_llama(folder)
    settings = folder / "model" / "tokenizer_config.json"
    told = json.loads(settings.read_text())
    told["chat_template"] = "{% for m in messages %}{{ m['role'] + ' : ' + m['content'] + ' </s> ' }}{% endfor %}"
    told["chat_template"] += "{% if add_generation_prompt %}{{ 'assistant : ' }}{% endif %}"
    settings.write_text(json.dumps(told))
    version = folder / "verl" / "version"
    if version.parent.is_dir():  # a file without a suffix is not laid out
        version.mkdir(exist_ok=True)
        (version / "version").write_text("0.6.0\n")
    for part, count in (("train", 96), ("test", 16)):
        rows = [{"question": text(6, n), "answer": text(7, n + 500)} for n in range(count)]
        pandas.DataFrame(rows).to_parquet(folder / f"{part}.parquet")
