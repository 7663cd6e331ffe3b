"""Files that a script imports, read from its text."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchrelay.cli.command_line.imports import imported, module_file

FILES = {
    "train.py": """
import os, torch
import model
from lib.data import loader, Sampler
from lib import plots
def later():
    import evaluate
try:
    import faster
except ImportError:
    import slower
try:
    import always
finally:
    pass
if False:
    import rarely
""",
    "model.py": "import train, layers",
    "layers.py": "from",  # no Python
    "evaluate.py": "",
    "always.py": "",
    "rarely.py": "",
    "faster.py": "",
    "slower.py": "",
    "unused.py": "import model",
    "lib/__init__.py": "",
    "lib/data.py": "from . import shared\nfrom .deep.far import away\nfrom ..model import x",
    "lib/loader.py": "",
    "lib/shared.py": "",
    "lib/plots.py": "",
    "lib/deep/far.py": "",
}
IMPORTED = {
    "train.py", "model.py", "layers.py", "evaluate.py", "always.py", "rarely.py",
    "lib/__init__.py", "lib/data.py", "lib/shared.py", "lib/plots.py", "lib/deep/far.py",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_what_the_script_imports_is_followed_and_what_may_fail_is_not(folder: Path) -> None:
    found = imported(folder, folder / "train.py")
    assert {str(path.relative_to(folder)) for path in found} == IMPORTED
    assert len(found) == len(IMPORTED)


def test_a_script_that_cannot_be_read_imports_nothing(tmp_path: Path) -> None:
    assert imported(tmp_path, tmp_path / "gone.py") == (tmp_path / "gone.py",)


def test_a_module_is_found_in_the_folder_or_is_somebody_elses(folder: Path) -> None:
    (folder / "lib" / "__main__.py").touch()
    assert module_file(folder, "lib.data") == folder / "lib/data.py"
    assert module_file(folder, "lib") == folder / "lib/__main__.py"
    assert module_file(folder, "torch.distributed.run") is None
