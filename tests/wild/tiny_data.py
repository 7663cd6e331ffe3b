"""Tiny data for the programs of the wild corpus, made with a fixed seed. Run in the program's environment:

python tiny_data.py NAME FOLDER
"""

from __future__ import annotations

import json
import pickle
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import tiny_arrivals
import tiny_fields
import tiny_firsts
import tiny_guests
import tiny_newcomers
import tiny_runs
import tiny_sets
import tiny_strangers
import tiny_tasks
import tiny_texts
import tiny_unseen
import tiny_views
import tiny_visitors

WORDS = (
    "the",
    "a",
    "small",
    "large",
    "red",
    "old",
    "green",
    "river",
    "house",
    "walks",
    "sees",
    "under",
    "over",
    "with",
)


def text(count: int, seed: int = 1) -> str:
    """Return `count` words, a full stop after every ninth."""
    draw = random.Random(seed)
    words = [draw.choice(WORDS) for _ in range(count)]
    return " ".join(word + "." if place % 9 == 8 else word for place, word in enumerate(words))


def text_file(folder: Path) -> None:
    (folder / "input.txt").write_text(text(4000))


def text_lines(folder: Path) -> None:
    """Make a text of short lines."""
    (folder / "input.txt").write_text("".join(text(12, seed) + "\n" for seed in range(320)))


def character_tokens(folder: Path) -> None:
    """Make data/tiny as nanoGPT's prepare scripts do: two files of token numbers, and their characters."""
    place = folder / "data" / "tiny"
    place.mkdir(parents=True)
    content = text(6000)
    characters = sorted(set(content))
    number = {character: n for n, character in enumerate(characters)}
    tokens = np.array([number[character] for character in content], dtype=np.uint16)
    tokens[: len(tokens) * 9 // 10].tofile(place / "train.bin")
    tokens[len(tokens) * 9 // 10 :].tofile(place / "val.bin")
    meta = {"vocab_size": len(characters), "itos": dict(enumerate(characters)), "stoi": number}
    (place / "meta.pkl").write_bytes(pickle.dumps(meta))


def story_shards(folder: Path) -> None:
    """Make the token shards that llama2.c trains from."""
    draw = np.random.default_rng(1)
    for place in (folder / "data" / "tok64", folder / "data" / "TinyStories_all_data"):
        place.mkdir(parents=True)
        for shard in range(3):
            draw.integers(0, 64, 4000, dtype=np.uint16).tofile(place / f"data{shard:02}.bin")


def image_folder(folder: Path) -> None:
    """Make train, val and test folders of 6 classes with 32 x 32 pictures."""
    from PIL import Image

    draw = np.random.default_rng(2)
    for part, count in (("train", 16), ("val", 4), ("test", 2)):
        for label in range(6):
            place = folder / "images" / part / f"n{label:04}"
            place.mkdir(parents=True)
            for number in range(count):
                pixels = draw.integers(0, 255, (32, 32, 3), dtype=np.uint8)
                pixels[:, :, label % 3] //= 2
                Image.fromarray(pixels).save(place / f"{number}.png")


def coco(folder: Path) -> None:
    """Make a data set in COCO's form: pictures with boxes."""
    from PIL import Image

    draw = np.random.default_rng(3)
    (folder / "coco" / "annotations").mkdir(parents=True)
    for part, count in (("train2017", 24), ("val2017", 6)):
        (folder / "coco" / part).mkdir()
        images, annotations = [], []
        for number in range(1, count + 1):
            name = f"{number:012}.jpg"
            Image.fromarray(draw.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(folder / "coco" / part / name)
            images.append({"id": number, "file_name": name, "width": 64, "height": 64})
            for _ in range(2):
                left, top = (int(v) for v in draw.integers(0, 30, 2))
                box = [left, top, 20, 25]
                outline = [left, top, left + 20, top, left + 20, top + 25, left, top + 25]
                annotations.append(
                    {
                        "id": len(annotations) + 1,
                        "image_id": number,
                        "category_id": int(draw.integers(1, 4)),
                        "bbox": box,
                        "area": 500,
                        "iscrowd": 0,
                        "segmentation": [outline],
                    }
                )
        content = {
            "images": images,
            "annotations": annotations,
            "categories": [{"id": n, "name": f"c{n}", "supercategory": "s"} for n in (1, 2, 3)],
        }
        (folder / "coco" / "annotations" / f"instances_{part}.json").write_text(json.dumps(content))


def tiny_clip(folder: Path) -> None:
    """Add a model of a few thousand parameters to open_clip's configurations."""
    content = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "patch_size": 16},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
    }
    (folder / "open_clip" / "model_configs" / "tiny.json").write_text(json.dumps(content))


def mnist(folder: Path) -> None:
    """Make MNIST's own files, with 240 and 60 pictures."""
    draw = np.random.default_rng(4)
    place = folder / "data" / "MNIST" / "raw"
    place.mkdir(parents=True)
    for part, count in (("train", 240), ("t10k", 60)):
        for kind, magic, shape in (("images-idx3", 2051, (count, 28, 28)), ("labels-idx1", 2049, (count,))):
            values = draw.integers(0, 255 if len(shape) > 1 else 10, shape, dtype=np.uint8)
            header = np.array((magic, *shape), dtype=">i4").tobytes()
            (place / f"{part}-{kind}-ubyte").write_bytes(header + values.tobytes())


def pets(folder: Path) -> None:
    """Make pictures that are named after their labels, in one folder."""
    from PIL import Image

    draw = np.random.default_rng(5)
    (folder / "pets").mkdir()
    for number in range(80):
        pixels = draw.integers(0, 255, (48, 48, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "pets" / f"{('cat', 'dog', 'rat')[number % 3]}_{number}.jpg")


def wikitext(folder: Path) -> None:
    """Make a text of lines at the place where a downloaded one would be."""
    (folder / "data").mkdir()
    lines = [" " + text(35, seed) for seed in range(120)]
    (folder / "data" / "wikitext-2.txt").write_text("\n".join(lines) + "\n")


def fineweb_shards(folder: Path) -> None:
    """Make shards of token numbers below 256, for training and for validation."""
    draw = np.random.default_rng(6)
    (folder / "edu_fineweb10B").mkdir()
    for part in ("train_0", "train_1", "val_0"):
        np.save(folder / "edu_fineweb10B" / f"{part}.npy", draw.integers(0, 256, 3000, dtype=np.uint16))


def _tokenizer(specials: dict[str, str]) -> Any:
    """Return a tokenizer of whole words, with these special tokens."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*specials.values(), *WORDS, *(word.capitalize() for word in WORDS), ".", ",", "?", ":"]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, specials["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **specials)


def tiny_llama(folder: Path) -> None:
    """Make a causal language model of some thousand parameters and its tokenizer, as a local folder."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = _tokenizer({"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"})
    torch.manual_seed(7)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=64,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    for part in (model, tokenizer):
        part.save_pretrained(folder / "model")


def tiny_bert(folder: Path) -> None:
    """Make an encoder of some thousand parameters that classifies, and its tokenizer, as a local folder."""
    from transformers import BertForSequenceClassification

    _bert(folder, BertForSequenceClassification)


def tiny_masked_bert(folder: Path) -> None:
    """Make the same encoder for the task that it would be pre-trained with: to guess words that are masked."""
    from transformers import BertForMaskedLM

    _bert(folder, BertForMaskedLM)


def _bert(folder: Path, kind: Any) -> None:
    import torch
    from transformers import BertConfig

    tokenizer = _tokenizer(
        {
            "unk_token": "[UNK]",
            "pad_token": "[PAD]",
            "cls_token": "[CLS]",
            "sep_token": "[SEP]",
            "mask_token": "[MASK]",
        }
    )
    torch.manual_seed(8)
    model = kind(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=64,
        )
    )
    for part in (model, tokenizer):
        part.save_pretrained(folder / "bert")


def _lines(folder: Path, name: str, rows: list[dict[str, Any]]) -> None:
    (folder / name).mkdir()
    (folder / name / "train.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    (folder / name / "test.jsonl").write_text("\n".join(json.dumps(row) for row in rows[:16]) + "\n")


def texts(folder: Path) -> None:
    _lines(folder, "texts", [{"text": text(20 + seed % 9, seed)} for seed in range(160)])


def prompts(folder: Path) -> None:
    _lines(folder, "prompts", [{"prompt": text(5 + seed % 3, seed)} for seed in range(80)])


def preferences(folder: Path) -> None:
    """Make prompts with an answer that is preferred and one that is not."""
    rows = [
        {"prompt": text(5, seed), "chosen": " " + text(8, seed + 1000), "rejected": " " + text(8, seed + 2000)}
        for seed in range(160)
    ]
    _lines(folder, "preferences", rows)


ACCURACY = """import datasets
import evaluate


class Accuracy(evaluate.Metric):
    def _info(self):
        kinds = datasets.Features({"predictions": datasets.Value("int32"), "references": datasets.Value("int32")})
        return evaluate.MetricInfo(description="", citation="", features=kinds)

    def _compute(self, predictions, references):
        pairs = list(zip(predictions, references))
        return {"accuracy": sum(a == b for a, b in pairs) / len(pairs)}
"""


def mrpc(folder: Path) -> None:
    """Make pairs of sentences with a label, and the metric that a hub would give."""
    draw = random.Random(9)
    (folder / "mrpc").mkdir()
    for part, count in (("train", 160), ("dev", 24)):
        with (folder / "mrpc" / f"{part}.csv").open("w") as out:
            out.write("label,sentence1,sentence2,idx\n")
            for n in range(count):
                out.write(f"{draw.randrange(2)},{text(9, n)},{text(9, n + 500)},{n}\n")
    (folder / "mrpc" / "accuracy.py").write_text(ACCURACY)


def sentences(folder: Path) -> None:
    """Make sentences, and pairs of them with a score."""
    draw = random.Random(10)
    with (folder / "pairs.csv").open("w") as out:
        out.write("sentence1,sentence2,score\n")
        for n in range(80):
            out.write(f"{text(8, n)},{text(8, n + 500)},{draw.random():.3f}\n")
    (folder / "sentences.csv").write_text("\n".join(["sentence", *(text(8, n + 900) for n in range(120))]) + "\n")


MAKERS = {
    maker.__name__: maker
    for maker in (
        text_file,
        text_lines,
        character_tokens,
        story_shards,
        image_folder,
        coco,
        tiny_clip,
        mnist,
        pets,
        wikitext,
        fineweb_shards,
        tiny_llama,
        tiny_bert,
        tiny_masked_bert,
        texts,
        prompts,
        preferences,
        mrpc,
        sentences,
        tiny_sets.cifar10,
        tiny_sets.lmdb_pictures,
        tiny_sets.token_pairs,
        tiny_sets.latents,
        tiny_sets.byte_tokenizer,
        tiny_sets.tiny_stable_diffusion,
        tiny_sets.tiny_vit,
        tiny_sets.picotron_run,
        tiny_sets.picture_pairs,
        tiny_sets.molecules,
        tiny_sets.ddpm_config,
        tiny_sets.litgpt_model,
        tiny_sets.imagenette,
        tiny_sets.captions,
        tiny_sets.boxes,
        tiny_sets.lines,
        tiny_sets.image_codes,
        tiny_sets.token_tensors,
        tiny_sets.tiny_vqvae,
        tiny_runs.many_captions,
        tiny_runs.instructions,
        tiny_runs.flat_latents,
        tiny_runs.packed_latents,
        tiny_runs.kair_run,
        tiny_runs.voc_masks,
        tiny_runs.albef_run,
        tiny_runs.conversations,
        tiny_runs.token_archives,
        tiny_runs.letter_numbers,
        tiny_runs.question_pairs,
        tiny_runs.picture_statistics,
        tiny_runs.torchtune_run,
        tiny_tasks.ijepa_run,
        tiny_tasks.msn_run,
        tiny_tasks.blip_run,
        tiny_tasks.nanovlm_run,
        tiny_tasks.yolov7_boxes,
        tiny_tasks.yolov9_run,
        tiny_tasks.videos,
        tiny_tasks.arcface_run,
        tiny_tasks.k_diffusion_run,
        tiny_tasks.rtdetr_run,
        tiny_tasks.rcg_run,
        tiny_tasks.vjepa_run,
        tiny_tasks.paws_run,
        tiny_tasks.beit_run,
        tiny_tasks.volumes,
        tiny_texts.packed_tokens,
        tiny_texts.passages,
        tiny_texts.olmo_run,
        tiny_texts.pendulum_run,
        tiny_texts.speech_run,
        tiny_texts.ratings_run,
        tiny_texts.chat_run,
        tiny_texts.robot_run,
        tiny_texts.lingua_run,
        tiny_texts.nvidia_logger,
        tiny_texts.text_parts,
        tiny_texts.question_files,
        tiny_texts.dion_run,
        tiny_texts.c4_run,
        tiny_texts.relora_run,
        tiny_texts.xlm_run,
        tiny_texts.fid_run,
        tiny_texts.preferred_talks,
        tiny_texts.asked_passages,
        tiny_fields.series_table,
        tiny_fields.unimatch_run,
        tiny_fields.bisenet_run,
        tiny_fields.weather_run,
        tiny_fields.flying_chairs,
        tiny_fields.spoken_lines,
        tiny_fields.captions_lmdb,
        tiny_fields.wave_features,
        tiny_fields.porous_fields,
        tiny_fields.power_series,
        tiny_views.picture_twins,
        tiny_views.taught_pictures,
        tiny_views.noisy_pictures,
        tiny_views.measured_scenes,
        tiny_views.animal_pictures,
        tiny_views.seen_people,
        tiny_views.three_kinds,
        tiny_views.street_scenes,
        tiny_views.zipped_pictures,
        tiny_views.numbered_pictures,
        tiny_views.remembered_teacher,
        tiny_views.picture_shards,
        tiny_strangers.frame_triplets,
        tiny_strangers.masked_videos,
        tiny_strangers.fineweb_shards,
        tiny_strangers.knowledge_graph,
        tiny_strangers.embedded_items,
        tiny_strangers.diffusion_script,
        tiny_strangers.distilled_pictures,
        tiny_strangers.boxed_things,
        tiny_strangers.handwritten_digits,
        tiny_strangers.kinds_of_pictures,
        tiny_strangers.measured_hours,
        tiny_strangers.tokens_of_two_kinds,
        tiny_strangers.llama_to_adapt,
        tiny_strangers.written_words,
        tiny_guests.things_told,
        tiny_guests.crawled_texts,
        tiny_guests.carts,
        tiny_guests.cats_and_dogs,
        tiny_guests.outlined_things,
        tiny_guests.sizes_to_search,
        tiny_guests.llama_of_old,
        tiny_guests.tracked_things,
        tiny_visitors.shopping_lists,
        tiny_visitors.shared_talks,
        tiny_visitors.moving_atoms,
        tiny_visitors.told_sounds,
        tiny_visitors.looked_for,
        tiny_visitors.steered_pictures,
        tiny_visitors.cut_out_things,
        tiny_visitors.heard_words,
        tiny_visitors.numbered_words,
        tiny_visitors.answered_questions,
        tiny_unseen.flowing_fields,
        tiny_unseen.represented_pictures,
        tiny_unseen.known_voices,
        tiny_unseen.hidden_words,
        tiny_unseen.shaken_molecules,
        tiny_unseen.taught_talks,
        tiny_unseen.digits_in_a_row,
        tiny_unseen.crawled_lines,
        tiny_unseen.told_and_mixed_pictures,
        tiny_newcomers.old_articles,
        tiny_newcomers.painted_noise,
        tiny_newcomers.boxed_by_hand,
        tiny_newcomers.sounds_of_things,
        tiny_newcomers.noisy_voices,
        tiny_newcomers.moving_skies,
        tiny_newcomers.taught_mistral,
        tiny_newcomers.pushed_molecules,
        tiny_newcomers.faces_to_code,
        tiny_newcomers.queries_with_answers,
        tiny_newcomers.scanned_bodies,
        tiny_newcomers.clicked_news,
        tiny_newcomers.warm_transformers,
        tiny_arrivals.vessels_in_eyes,
        tiny_arrivals.weights_of_old,
        tiny_arrivals.token_numbers,
        tiny_arrivals.boxes_in_lines,
        tiny_arrivals.written_talks,
        tiny_arrivals.weather_of_old,
        tiny_arrivals.hours_to_tell,
        tiny_arrivals.books_in_two_tongues,
        tiny_arrivals.ranks_by_mpi,
        tiny_arrivals.crawled_pages,
        tiny_arrivals.asked_model,
        tiny_arrivals.pictures_to_adapt,
        tiny_firsts.numbered_tokens,
        tiny_firsts.puzzles,
        tiny_firsts.thoughts_in_steps,
        tiny_firsts.faces_by_name,
        tiny_firsts.preferred_answers,
        tiny_firsts.maskgit_script,
        tiny_firsts.measured_molecules,
        tiny_firsts.clean_and_noisy_speech,
        tiny_firsts.instructions_for_mistral,
        tiny_firsts.reviewed_things,
    )
}


if __name__ == "__main__":
    MAKERS[sys.argv[1]](Path(sys.argv[2]))
