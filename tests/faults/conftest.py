"""Undisturbed runs, each made once for all processes that test."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from support.relay_run import plain

Undisturbed = Callable[..., Path]

# Before tests are collected, and by whom starts the processes that share them: they must agree on the tests' names.
os.environ.setdefault("TORCHRELAY_TEST_SEED", str(random.SystemRandom().randrange(1_000_000)))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """`undisturbed(script, *args, ranks=N)`: the folder with the results of that script under plain torchrun."""
    own = tmp_path_factory.getbasetemp()
    shared = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "undisturbed"
    shared.mkdir(exist_ok=True)

    def of(script: str, *args: str, ranks: int) -> Path:
        name = hashlib.sha256(repr((script, ranks, args)).encode()).hexdigest()[:16]
        folder, whole = shared / name, shared / f"{name}.whole"
        with open(shared / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not whole.exists():
                shutil.rmtree(folder, ignore_errors=True)  # a run that failed
                folder.mkdir()
                plain(folder, script, *args, ranks=ranks)
                whole.touch()
        return folder / "out"

    return of
