"""Keys are named without a method of their class, and alike in each process."""

from __future__ import annotations

import datetime
import enum
import subprocess
import sys
from pathlib import PurePosixPath
from typing import Any

import numpy
import pytest
import torch

from torchrelay.shim.capture.state.host_state import Nth
from torchrelay.shim.capture.state.key_text import text_of


class Colour(enum.Enum):
    RED = 1

    def __repr__(self) -> str:
        raise RuntimeError("asked")


class Rights(enum.Flag):
    READ = 1
    WRITE = 2
    RUN = 4


class Names(frozenset[str]):
    pass


def test_flags_together_are_told_apart() -> None:
    assert text_of(Rights.READ | Rights.WRITE) != text_of(Rights.READ | Rights.RUN)


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("a b", "'a b'"),
        (3, "3"),
        (torch.float32, "torch.float32"),
        (("a", Colour.RED), "('a', Colour.RED)"),
        (Nth(2), "Nth(2)"),
        (frozenset({"b", "a"}), "{'a', 'b'}"),
        (Names({"b", "a"}), "{'a', 'b'}"),
        (dict, "builtins.dict"),
    ],
)
def test_the_text_of_a_key_is_short(key: Any, text: str) -> None:
    assert text_of(key) == text


def test_a_value_whose_own_words_fail_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numpy, "bool", bool)  # as scripts do for old libraries: numpy cannot name its dtypes then
    names = [text_of(numpy.dtype(kind)) for kind in ("bool", "float32", "float64")]
    assert len({*names}) == 3
    assert all("DType" in name for name in names)


def test_the_text_of_a_key_is_the_same_in_another_process() -> None:
    keys = "[numpy.dtype('float32'), datetime.date(2020, 1, 2), frozenset('abcdef'), pathlib.PurePosixPath('a')]"
    code = (
        "import datetime, numpy, pathlib; from torchrelay.shim.capture.state.key_text import text_of;"
        f"print(*map(text_of, {keys}), sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = [numpy.dtype("float32"), datetime.date(2020, 1, 2), frozenset("abcdef"), PurePosixPath("a")]
    assert done.stdout.splitlines() == [*map(text_of, here)]
