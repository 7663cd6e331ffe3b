from __future__ import annotations

import re

import pytest

from torchrelay.protocol.kube.object_names import beginning

PART = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
LEGAL = re.compile(rf"{PART}(\.{PART})*")
MOST = 40


@pytest.mark.parametrize("name", ["llama", "x" * 60, f"{'x' * 39}.70b", f"{'x' * 39}-70b", f"{'x' * 37}--.b"])
def test_a_name_that_begins_with_another_one_is_legal_wherever_that_is_cut(name: str) -> None:
    kept = beginning(name, MOST)
    assert name.startswith(kept)
    assert len(kept) <= MOST
    for made in (kept, f"{kept}-spare-7x", f"{kept}.7x"):
        assert LEGAL.fullmatch(made), made


def test_as_much_as_fits_is_kept() -> None:
    assert beginning("llama-70b", MOST) == "llama-70b"
    assert beginning("x" * 60, MOST) == "x" * MOST
