"""What scripts keep at module level and never write to: a model zoo, a tokenizer, a data index; and a history that grows.

`--registries N` of overhead_script.py imports it: N model configurations, with a builder each, beside the rest.
"""

import dataclasses
import os

ENTRIES = int(os.environ.get("BENCH_REGISTRIES", "0"))
"""In the environment, since a module is told nothing else when it is imported."""


@dataclasses.dataclass
class Config:
    name: str
    size: tuple = (3, 224, 224)
    tags: list = dataclasses.field(default_factory=list)
    extra: dict = dataclasses.field(default_factory=dict)


class Tokenizer:
    def __init__(self, words):
        self.numbers = {word: number for number, word in enumerate(words)}
        self.words = list(self.numbers)
        self.ranks = {(word, "x"): number for number, word in enumerate(words)}


def builder(number):
    def build(**options):
        return CONFIGS[f"model{number}"], options

    return build


CONFIGS = {f"model{n}": Config(f"model{n}", extra={"url": str(n), "tags": [n]}) for n in range(ENTRIES)}
BUILDERS = {f"model{n}": builder(n) for n in range(ENTRIES)}
TOKENIZER = Tokenizer([f"word{n}" for n in range(10 * ENTRIES)])
INDEX = list(range(100 * ENTRIES))
HISTORY = []
