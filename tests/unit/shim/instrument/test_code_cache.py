from __future__ import annotations

from pathlib import Path

import pytest

from torchrelay.shim.instrument import cached_rewrite, code_cache
from torchrelay.shim.instrument.cached_rewrite import rewrite
from torchrelay.shim.instrument.code_cache import CodeCache

SOURCE = b"for x in f():\n    g(next(x))\n"


@pytest.fixture(autouse=True)
def writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", False)


@pytest.fixture
def cache(tmp_path: Path) -> CodeCache:
    return CodeCache(tmp_path / "cache")


def files(tmp_path: Path) -> list[Path]:
    return [*(tmp_path / "cache").iterdir()]


def test_what_is_stored_is_loaded_by_another_process(cache: CodeCache, tmp_path: Path) -> None:
    key = cache.key(b"source")
    assert cache.load(key) is None
    cache.store(key, b"made")
    other = CodeCache(tmp_path / "cache")
    assert other.key(b"source") == key
    assert other.load(key) == b"made"
    assert other.key(b"another source") != key


def test_a_damaged_file_counts_as_none(cache: CodeCache, tmp_path: Path) -> None:
    key = cache.key(b"source")
    cache.store(key, b"made")
    (file,) = files(tmp_path)
    file.write_bytes(file.read_bytes()[:-1])
    assert cache.load(key) is None


def test_a_folder_that_others_can_write_to_is_not_used(cache: CodeCache, tmp_path: Path) -> None:
    key = cache.key(b"source")
    cache.store(key, b"made")
    (tmp_path / "cache").chmod(0o777)
    assert cache.load(key) is None
    cache.store(cache.key(b"more"), b"made")
    assert len(files(tmp_path)) == 1


def test_another_version_of_the_shim_has_other_keys(cache: CodeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    key = cache.key(b"source")
    monkeypatch.setattr(code_cache, "_own_version", lambda: b"another")
    assert CodeCache(None).key(b"source") != key


@pytest.mark.parametrize("part", ["instrument", "script", "bootstrap"])
def test_a_version_differs_in_what_makes_or_reads_the_code(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("instrument", "script", "bootstrap"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file.py").write_text("")
    monkeypatch.setattr(code_cache, "__file__", str(tmp_path / "instrument" / "code_cache.py"))
    key = CodeCache(None).key(b"source")
    assert CodeCache(None).key(b"source") == key
    (tmp_path / part / "file.py").write_text("more = True")
    assert CodeCache(None).key(b"source") != key


def test_there_are_never_too_many_files(cache: CodeCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        cache.store(cache.key(bytes([number])), b"made")
    monkeypatch.setattr(code_cache, "_MOST_FILES", 8)
    CodeCache(tmp_path / "cache").store(cache.key(b"one more"), b"made")
    assert len(files(tmp_path)) == 6


@pytest.mark.parametrize("why", ["no folder", "no bytecode wanted", "not writable"])
def test_where_nothing_can_be_kept_nothing_fails(why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.dont_write_bytecode", why == "no bytecode wanted")
    (tmp_path / "file").write_text("")
    cache = CodeCache({"no folder": None, "not writable": tmp_path / "file" / "cache"}.get(why, tmp_path / "cache"))
    cache.store(cache.key(b"source"), b"made")
    assert cache.load(cache.key(b"source")) is None


def test_a_module_is_rewritten_once(cache: CodeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"loops": True, "package": False, "generators": frozenset[str]()}
    made = rewrite(cache, SOURCE, "a.py", **options)  # type: ignore[arg-type]  # options of several types
    monkeypatch.setattr(cached_rewrite, "instrument", None)
    again = rewrite(cache, SOURCE, "a.py", **options)  # type: ignore[arg-type]  # the same
    assert again == made
    assert (len(again.sites), again.next_calls, again.code.co_filename) == (1, 1, "a.py")
    with pytest.raises(TypeError):
        rewrite(cache, SOURCE + b"\n", "a.py", **options)  # type: ignore[arg-type]  # the same
