from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchrelay.shim.instrument.code_cache import CodeCache
from torchrelay.shim.instrument.packages import PackageOrigin, Packages, may_hold_training_loop, steps_an_optimizer

STEPS = "def advance(optimizer, loss):\n    loss.backward()\n    optimizer.step()\n"
GOES_ROUND = "class Engine:\n    def run(self):\n        for batch in self.loader: self.handle(batch)\n"
NEITHER = "def area(a, b):\n    return a * b\n"


@pytest.fixture
def packages(tmp_path: Path) -> Packages:
    return Packages(CodeCache(tmp_path / "cache"))


def make(home: Path, files: dict[str, str], distribution: str = "") -> Path:
    """A package `pkg` in that folder; with a distribution's metadata beside it, if it has a name."""
    for name, text in files.items():
        file = home / "pkg" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    if distribution:
        (home / f"{distribution}-1.0.dist-info").mkdir()
        (home / f"{distribution}-1.0.dist-info" / "RECORD").write_text("pkg/__init__.py,sha256=x,0\nother.py,,\n")
    return home / "pkg"


def test_a_plain_folder_is_the_users_own(packages: Packages, tmp_path: Path) -> None:
    folder = make(tmp_path, {"steps.py": STEPS, "neither.py": NEITHER})
    assert packages.origin("pkg.steps", str(folder / "steps.py")) is PackageOrigin.USERS
    assert packages.origin("pkg.neither", str(folder / "neither.py")) is PackageOrigin.USERS
    assert packages.origin("alone", str(tmp_path / "alone.py")) is PackageOrigin.USERS


def test_an_installed_package_trains_if_any_of_its_files_steps_an_optimizer(packages: Packages, tmp_path: Path) -> None:
    files = {"steps.py": STEPS, "engines/loop.py": GOES_ROUND, "neither.py": NEITHER}
    folder = make(tmp_path / "site-packages", files)
    found = {name: packages.origin(f"pkg.{name}", str(folder / name)) for name in files}
    assert found == {
        "steps.py": PackageOrigin.TRAINS,
        "engines/loop.py": PackageOrigin.TRAINS,
        "neither.py": PackageOrigin.LEFT_ALONE,
    }


def test_an_installed_package_that_steps_no_optimizer_is_left_alone(packages: Packages, tmp_path: Path) -> None:
    folder = make(tmp_path / "site-packages", {"loop.py": GOES_ROUND})
    assert packages.origin("pkg.loop", str(folder / "loop.py")) is PackageOrigin.LEFT_ALONE


def test_a_module_of_its_packages_name_is_of_the_same_distribution(packages: Packages, tmp_path: Path) -> None:
    folder = make(tmp_path / "shared", {"__init__.py": NEITHER, "pkg.py": GOES_ROUND}, distribution="pkg")
    assert packages.origin("pkg.pkg", str(folder / "pkg.py")) is PackageOrigin.LEFT_ALONE


@pytest.mark.parametrize(("claimed", "expected"), [("pkg", PackageOrigin.LEFT_ALONE), ("", PackageOrigin.USERS)])
def test_a_package_is_installed_in_any_folder_if_metadata_beside_it_says_so(
    claimed: str, expected: PackageOrigin, packages: Packages, tmp_path: Path
) -> None:
    folder = make(tmp_path / "shared", {"__init__.py": NEITHER}, distribution=claimed)
    assert packages.origin("pkg", str(folder / "__init__.py")) is expected


def test_metadata_of_others_in_that_folder_does_not_make_a_module_an_installed_one(
    packages: Packages, tmp_path: Path
) -> None:
    make(tmp_path / "shared", {"__init__.py": NEITHER}, distribution="pkg")
    assert packages.origin("other", str(tmp_path / "shared" / "other.py")) is PackageOrigin.LEFT_ALONE
    assert packages.origin("mine", str(tmp_path / "shared" / "mine.py")) is PackageOrigin.USERS


def test_torch_and_the_standard_library_are_never_rewritten(packages: Packages) -> None:
    import torch

    assert (
        packages.origin("torch.optim.adam", str(Path(torch.__file__).parent / "optim/adam.py"))
        is PackageOrigin.LEFT_ALONE
    )
    assert packages.origin("os", os.__file__) is PackageOrigin.LEFT_ALONE


def test_what_was_found_is_kept_until_the_folder_changes(
    packages: Packages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)
    folder = make(tmp_path / "site-packages", {"a.py": STEPS})
    assert packages.origin("pkg.a", str(folder / "a.py")) is PackageOrigin.TRAINS
    (folder / "a.py").write_text(NEITHER)  # the folder's time stays what it was
    again = Packages(CodeCache(tmp_path / "cache"))
    assert again.origin("pkg.a", str(folder / "a.py")) is PackageOrigin.TRAINS
    os.utime(folder, ns=(1, 1))
    changed = Packages(CodeCache(tmp_path / "cache"))
    assert changed.origin("pkg.a", str(folder / "a.py")) is PackageOrigin.LEFT_ALONE


@pytest.mark.parametrize(
    "text",
    [
        b"optimizer.step()",
        b"self.opt.step()",
        b"scaler.step(optimizer)",
        b"optimizers[0].step()",
        b"self._optimizer.step(closure)",
        b"optim_g.step()",
    ],
)
def test_these_texts_step_an_optimizer(text: bytes) -> None:
    assert steps_an_optimizer(text)


@pytest.mark.parametrize("text", [b"scheduler.step()", b"env.step(action)", b"profiler.step()", b"optimizer_step"])
def test_these_texts_do_not(text: bytes) -> None:
    assert not steps_an_optimizer(text)


def test_a_file_may_hold_a_training_loop_by_what_it_calls_or_by_the_name_of_a_function() -> None:
    assert may_hold_training_loop(GOES_ROUND.encode())
    assert may_hold_training_loop(b"for b in l: m.training_step(b)")
    assert not may_hold_training_loop(NEITHER.encode())
