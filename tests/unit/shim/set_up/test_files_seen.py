"""A joiner's set-up finds the files that the lost rank's had found, whatever the job has done since, and changes none."""

from __future__ import annotations

import fcntl
import glob
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from torchrelay.shim.adapters.cpython.diverted import Diversions
from torchrelay.shim.set_up import files_seen
from torchrelay.shim.set_up.files_seen import FilesSeen, SeenRecorder
from torchrelay.shim.set_up.scratch_files import JoinerFiles

SetUpCode = Callable[[Path], Any]


def content(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): path.read_text() if path.is_file() else "folder"
        for path in sorted(root.rglob("*"))
    }


def as_rank(code: SetUpCode, root: Path) -> tuple[Any, FilesSeen]:
    recorder, diversions = SeenRecorder(), Diversions()
    recorder.divert(diversions)
    try:
        return code(root), recorder.seen
    finally:
        diversions.end()


def as_joiner(code: SetUpCode, root: Path, seen: FilesSeen) -> Any:
    with JoinerFiles(seen=seen):
        return code(root)


def run_folder(root: Path) -> list[Any]:
    """As many scripts do: another way if the folder is there."""
    out, found = root / "out", []
    if out.exists():
        found.append("resume")
    else:
        out.mkdir(parents=True)
        found.append("fresh")
    os.makedirs(out / "a" / "b", exist_ok=True)
    (out / "c" / "d").mkdir(parents=True)
    with open(out / "config.json", "x") as file:
        file.write("{}")
    found.append((out / "config.json").read_text())
    return [*found, sorted(os.listdir(out)), sorted(p.name for p in out.iterdir()), glob.glob(str(out / "*.pt"))]


def next_version(root: Path) -> list[str]:
    os.makedirs(root / "logs", exist_ok=True)
    taken = [entry.name for entry in os.scandir(root / "logs") if entry.is_dir()]
    own = root / "logs" / f"version_{len(taken)}"
    own.mkdir()
    return [*taken, own.name]


def cache_by_rename(root: Path) -> list[Any]:
    """As `datasets.map`: a temporary file beside the cache, published by a rename."""
    cache, found = root / "cache.bin", []
    if not cache.exists():
        found.append("made")
        with tempfile.NamedTemporaryFile("wb", dir=root, delete=False) as reserved:
            pass
        with open(reserved.name, "wb") as file:
            file.write(b"mapped")
        shutil.move(reserved.name, cache)
    return [*found, cache.read_bytes(), os.path.getsize(cache), sorted(os.listdir(root))]


def folder_by_rename(root: Path) -> list[Any]:
    found = [(root / "data").is_dir()]
    part = tempfile.mkdtemp(dir=root)
    Path(part, "shard").write_text("x")
    os.rename(part, root / "data")
    return [*found, (root / "data" / "shard").read_text(), os.path.exists(part)]


def lock_file(root: Path) -> list[Any]:
    descriptor = os.open(root / "lock", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
    return [(root / "lock").exists()]


def start_afresh(root: Path) -> list[Any]:
    """What an earlier run has left is removed."""
    found: list[Any] = [(root / "old").exists()]
    if (root / "old").exists():
        shutil.rmtree(root / "old")
    found.append((root / "old").exists())
    (root / "old").mkdir()
    (root / "old" / "log").write_text("new")
    return [*found, os.listdir(root / "old"), (root / "old" / "log").read_text()]


def rotate(root: Path) -> list[Any]:
    if (root / "log.txt").exists():
        os.replace(root / "log.txt", root / "log.txt.1")
    (root / "log.txt").write_text("")
    os.remove(root / "stale")
    return [os.path.exists(root / "log.txt.1"), os.access(root / "stale", os.R_OK), (root / "log.txt").read_text()]


def read_or_make(root: Path) -> list[Any]:
    found: list[Any] = []
    try:
        found.append((root / "state.json").read_text())
    except FileNotFoundError:
        found.append("none")
        (root / "state.json").write_text("0")
    os.symlink("state.json", root / "latest")
    return [*found, os.path.lexists(root / "latest"), (root / "latest").read_text()]


def by_rank_of_others(root: Path) -> list[Any]:
    """Another rank makes it in the meantime."""
    found = [(root / "ready").exists()]
    subprocess_touch(root / "ready")
    return [*found, (root / "ready").exists(), os.listdir(root)]


def subprocess_touch(path: Path) -> None:
    import subprocess

    subprocess.run(["touch", path], check=True)


ALL: list[SetUpCode] = [
    run_folder,
    next_version,
    cache_by_rename,
    folder_by_rename,
    lock_file,
    start_afresh,
    rotate,
    read_or_make,
    by_rank_of_others,
]


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "stale").write_text("stale")
    (folder / "log.txt").write_text("of an earlier run\n")
    (folder / "old").mkdir()
    (folder / "old" / "log").write_text("old")
    (folder / "old" / "other").write_text("old")
    return iter([folder]).__next__()


@pytest.mark.parametrize("code", ALL, ids=[code.__name__ for code in ALL])
def test_set_up_goes_the_same_way_again_and_changes_nothing(code: SetUpCode, root: Path) -> None:
    first, seen = as_rank(code, root)
    for path in [p for p in root.rglob("*") if p.is_file() and p.name != "shard"]:
        with open(path, "a") as file:  # training goes on, and writes
            file.write("trained\n")
    for name in ("out", "old"):
        if (root / name).is_dir():
            (root / name / "checkpoint.pt").write_text("step 100")
    before = content(root)
    if code in (cache_by_rename,):
        (root / "cache.bin").write_bytes(b"mapped")
        before = content(root)
    second = as_joiner(code, root, seen)
    assert second == first
    assert content(root) == before


def test_what_the_lost_rank_found_is_found(root: Path) -> None:
    def code(folder: Path) -> list[Any]:
        return [(folder / "log.txt").read_text(), os.stat(folder / "old").st_ino, sorted(os.listdir(folder))]

    first, seen = as_rank(code, root)
    (root / "later").write_text("by the job")
    assert as_joiner(code, root, seen) == first


def test_a_check_protects_what_is_there(root: Path) -> None:
    """Without a record nothing is hidden; what the script removes or replaces stays."""
    before = content(root)

    def code(folder: Path) -> list[Any]:
        shutil.rmtree(folder / "old")
        with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
            file.write("new")
        os.replace(file.name, folder / "log.txt")
        os.rename(folder / "stale", folder / "moved")
        os.utime(folder / "log.txt", (0, 0))
        with pytest.raises(FileExistsError):
            open(folder / "log.txt", "x").close()
        return [(folder / "old").exists(), (folder / "log.txt").read_text(), (folder / "stale").exists()]

    assert as_joiner(code, root, FilesSeen()) == [False, "new", False]
    assert content(root) == before


def test_errors_are_those_of_python_and_name_the_users_path(root: Path) -> None:
    with JoinerFiles(seen=FilesSeen()):
        with pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*nothing'"):
            os.stat(root / "nothing")
        with pytest.raises(FileExistsError):
            os.mkdir(root / "old")
        with pytest.raises(IsADirectoryError):
            os.remove(root / "old")
        with pytest.raises(NotADirectoryError):
            os.listdir(root / "stale")
        with pytest.raises(TypeError):
            os.stat()  # type: ignore[call-arg]
        assert os.stat("/", follow_symlinks=False).st_ino == os.lstat("/").st_ino


def test_paths_of_any_type_and_descriptors_are_understood(root: Path) -> None:
    with JoinerFiles(seen=FilesSeen(absent={str(root / "log.txt"): 1})):
        assert not os.path.exists(os.fsencode(root / "log.txt"))
        assert os.path.exists(root / "log.txt")
        descriptor = os.open(root, os.O_RDONLY)
        assert "old" in os.listdir(descriptor)
        assert os.stat("old", dir_fd=descriptor).st_ino == (root / "old").stat().st_ino
        assert b"old" in os.listdir(os.fsencode(root))
        assert [entry.path for entry in os.scandir(os.fsencode(root)) if entry.is_dir()] == [os.fsencode(root / "old")]
        os.close(descriptor)


def test_recording_changes_nothing_and_ends(root: Path) -> None:
    functions = os.stat, os.open, os.listdir, open
    first, seen = as_rank(run_folder, root)
    assert seen.absent[str(root / "out")] >= 2
    assert functions == (os.stat, os.open, os.listdir, open)
    count = dict(seen.absent)
    assert not (root / "never").exists()
    assert seen.absent == count
    assert first[0] == "fresh"


def test_too_many_files_to_keep_in_mind_are_told(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_seen, "_MAX_BYTES", 500)
    recorder, diversions = SeenRecorder(), Diversions()
    recorder.divert(diversions)
    try:
        assert not recorder.is_full
        assert not any((root / f"part-{number}").exists() for number in range(50))
    finally:
        diversions.end()
    assert recorder.is_full
    assert 0 < len(recorder.seen.absent) < 50


def test_what_is_asked_when_set_up_is_over_is_told_by_the_present(root: Path) -> None:
    with JoinerFiles(seen=FilesSeen(absent={str(root / "log.txt"): 2})) as files:
        assert not (root / "log.txt").exists()
        files.forget()
        assert (root / "log.txt").exists()


def wait_for_folder(root: Path) -> list[Any]:
    """As a rank does that looks for a folder which another one makes, and asks what it is."""
    folder, asked = root / "step0-tmp", 0
    while not folder.exists():
        assert asked < 3, "it would wait for ever"
        asked += 1
        subprocess_make(folder)
    inside = folder / "part.pt"
    return [
        asked,
        folder.is_dir(),
        os.path.getsize(inside),
        os.stat(folder / "latest").st_size,
        os.lstat(folder / "latest").st_mode,
        os.readlink(folder / "latest"),
        os.readlink(os.fsencode(folder / "latest")),
        os.access(inside, os.R_OK),
        os.access(inside, os.X_OK),
        sorted(os.listdir(folder)),
        (folder / "other").exists(),
    ]


def subprocess_make(folder: Path) -> None:
    """Once: the peers of a joiner's set-up have done their part long ago."""
    import subprocess

    make = "[ -e step0 ] || (mkdir step0-tmp && cp log.txt step0-tmp/part.pt && ln -s part.pt step0-tmp/latest)"
    subprocess.run(["sh", "-c", make], cwd=folder.parent, check=True)


def test_what_another_rank_has_renamed_since_is_told_as_it_was(root: Path) -> None:
    first, seen = as_rank(wait_for_folder, root)
    assert first[0] == 1
    (root / "step0-tmp").rename(root / "step0")
    before = content(root)
    assert as_joiner(wait_for_folder, root, seen) == first
    assert content(root) == before


def read_all(root: Path) -> list[Any]:
    """In all ways that there are."""
    handed = root / "handed"
    found: list[Any] = [handed.read_text(), handed.read_bytes()]
    descriptor = os.open(handed, os.O_RDONLY)
    found.append(os.read(descriptor, 10))
    os.close(descriptor)
    with open(root / "log.txt") as log:
        found.append(log.read())
    return found


def subprocess_write(path: Path, text: str) -> None:
    """As another rank does."""
    import subprocess

    subprocess.run(["sh", "-c", f"printf %s {text} > {path}"], check=True)


def test_small_files_are_read_as_the_lost_rank_read_them(root: Path) -> None:
    (root / "handed").write_text("out")
    first, seen = as_rank(read_all, root)
    assert first[0] == "out"
    (root / "handed").unlink()
    (root / "log.txt").write_text("something else")
    before = content(root)
    assert as_joiner(read_all, root, seen) == first
    assert content(root) == before


def test_a_file_that_was_read_twice_is_read_as_it_was_each_time(root: Path) -> None:
    def code(folder: Path, *, writes: bool) -> list[str]:
        found = []
        for text in ("one", "two"):
            if writes:
                subprocess_write(folder / "turn", text)
            found.append((folder / "turn").read_text())
        return found

    first, seen = as_rank(lambda folder: code(folder, writes=True), root)
    assert as_joiner(lambda folder: code(folder, writes=False), root, seen) == first == ["one", "two"]


def test_what_is_read_once_set_up_is_over_is_read_from_the_file(root: Path) -> None:
    _, seen = as_rank(lambda folder: (folder / "stale").read_text(), root)
    (root / "stale").write_text("new")
    with JoinerFiles(seen=seen) as files:
        assert (root / "stale").read_text() == "stale"
        files.forget()
        assert (root / "stale").read_text() == "new"


def test_what_set_up_writes_itself_is_not_kept(root: Path) -> None:
    def code(folder: Path) -> str:
        (folder / "own").write_text("own")
        return (folder / "own").read_text()

    assert as_rank(code, root)[1].read == {}


def test_large_files_are_not_kept_and_are_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_seen, "_SMALL_FILE_BYTES", 4)
    _, seen = as_rank(lambda folder: (folder / "stale").read_text(), root)
    assert (seen.read, seen.large) == ({}, [str(root / "stale")])
    (root / "stale").unlink()
    with pytest.raises(FileNotFoundError):
        as_joiner(lambda folder: (folder / "stale").read_text(), root, seen)


def test_who_opens_to_write_has_the_file_itself(root: Path) -> None:
    """An array that is mapped with mode r+ is read by its header first."""
    code = lambda folder: (folder / "stale").read_text()  # noqa: E731 - what set-up does
    _, seen = as_rank(code, root)
    (root / "stale").write_text("new")
    with JoinerFiles(seen=seen):
        assert (root / "stale").read_text() == "stale"
        with open(root / "stale", "r+") as file:
            assert file.read() == "new"
            file.write("er")
        descriptor = os.open(root / "stale", os.O_RDWR)
        assert os.read(descriptor, 10) == b"newer"
        os.close(descriptor)
    assert (root / "stale").read_text() == "newer"


@pytest.mark.parametrize("has_grown", [True, False])
def test_a_file_that_is_still_open_to_read_when_set_up_is_over_goes_on_where_it_has_only_grown(
    root: Path, has_grown: bool
) -> None:
    _, seen = as_rank(lambda folder: (folder / "log.txt").read_text(), root)
    before = (root / "log.txt").read_text()
    (root / "log.txt").write_text((before if has_grown else "something else, and longer") + "more")
    with JoinerFiles(seen=seen):
        log = open(root / "log.txt")  # noqa: SIM115 - it stays open
        descriptor = os.open(root / "log.txt", os.O_RDONLY)
        assert log.read() == before
        assert os.read(descriptor, 1000).decode() == before
    assert log.read() == ("more" if has_grown else "")
    assert os.read(descriptor, 1000) == (b"more" if has_grown else b"")
    log.close()
    os.close(descriptor)


def test_a_folder_in_the_place_of_a_file_that_was_read_is_no_error_of_ours(root: Path) -> None:
    def code(folder: Path) -> bool:
        return (folder / "stale").exists()

    _, seen = as_rank(lambda folder: (code(folder), (folder / "stale").read_text()), root)
    (root / "stale").unlink()
    (root / "stale").mkdir()
    assert as_joiner(code, root, seen)


def test_a_file_that_has_grown_meanwhile_is_read_as_it_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_seen, "_SMALL_FILE_BYTES", 8)

    def code(folder: Path, *, writes: bool) -> list[str]:
        found = []
        for text in ("small", "larger-than-that"):
            if writes:
                subprocess_write(folder / "turn", text)
            found.append((folder / "turn").read_text())
        return found

    first, seen = as_rank(lambda folder: code(folder, writes=True), root)
    assert as_joiner(lambda folder: code(folder, writes=False), root, seen) == first


def test_what_set_up_makes_in_a_folder_of_its_own_is_no_large_file_that_is_gone(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_seen, "_SMALL_FILE_BYTES", 2)

    def code(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as own:
            subprocess_write(Path(own) / "part", "content")
            assert (Path(own) / "part").read_text() == "content"
        assert (folder / "stale").read_text() == "stale"
        (folder / "stale").unlink()

    assert as_rank(code, root)[1].large == []


def test_what_may_be_a_secret_is_not_kept(root: Path) -> None:
    (root / "stale").chmod(0o600)
    _, seen = as_rank(lambda folder: (folder / "stale").read_text(), root)
    assert (seen.read, seen.large) == ({}, [str(root / "stale")])


def test_the_size_that_is_told_is_that_of_what_is_read(root: Path) -> None:
    def code(folder: Path) -> tuple[int, str]:
        return os.stat(folder / "stale").st_size, (folder / "stale").read_text()

    first, seen = as_rank(code, root)
    (root / "stale").write_text("longer than it was")
    assert as_joiner(code, root, seen) == first


def test_little_is_kept_of_what_was_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_seen, "_CONTENT_BYTES", len("stale") + 1)
    _, seen = as_rank(lambda folder: [(folder / name).read_text() for name in ("stale", "log.txt")], root)
    assert ([*seen.read], seen.large) == ([str(root / "stale")], [str(root / "log.txt")])


def test_what_set_up_removes_itself_is_gone_for_it(root: Path) -> None:
    def code(folder: Path) -> list[bool]:
        found = [(folder / "old").exists(), (folder / "stale").exists()]
        shutil.rmtree(folder / "old")
        os.remove(folder / "stale")
        return [*found, (folder / "old").exists(), (folder / "stale").exists()]

    first, seen = as_rank(code, root)
    assert as_joiner(code, root, seen) == first == [True, True, False, False]


def test_what_was_there_is_told_until_set_up_is_over(root: Path) -> None:
    _, seen = as_rank(lambda folder: (folder / "stale").exists(), root)
    (root / "stale").unlink()
    with JoinerFiles(seen=seen) as files:
        assert (root / "stale").exists()
        files.forget()
        assert not (root / "stale").exists()


def test_what_is_there_is_asked_itself(root: Path) -> None:
    _, seen = as_rank(lambda folder: os.path.getsize(folder / "log.txt"), root)
    (root / "log.txt").write_text("")
    assert as_joiner(lambda folder: os.path.getsize(folder / "log.txt"), root, seen) == 0


def test_what_set_up_makes_itself_is_asked_itself(root: Path) -> None:
    """What a process that it has started made there, the one that it starts now may not make."""

    def code(folder: Path, made: bool) -> bool:
        (folder / "own").mkdir()
        if made:
            subprocess_touch(folder / "own" / "result")
        return (folder / "own" / "result").exists()

    first, seen = as_rank(lambda folder: code(folder, True), root)
    assert first
    shutil.rmtree(root / "own")
    assert not as_joiner(lambda folder: code(folder, False), root, seen)


def test_little_is_kept_of_what_was_there(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def code(folder: Path) -> bool:
        assert os.path.exists(os.__file__)
        assert (folder / "stale").exists()
        (folder / "own").mkdir()
        return all([(folder / "stale").exists(), (folder / "own").exists(), (folder / "log.txt").exists()])

    first, seen = as_rank(code, root)
    assert first
    assert [*seen.found] == [("stat", str(root / "stale")), ("stat", str(root / "log.txt"))]
    monkeypatch.setattr(files_seen, "_FOUND_BYTES", 1)
    (root / "own").rmdir()
    assert [*as_rank(code, root)[1].found] == [("stat", str(root / "stale"))]


def test_what_is_installed_in_a_linked_environment_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "real" / "lib").mkdir(parents=True)
    (tmp_path / "env").symlink_to("real")
    (found,) = files_seen.installed_in([str(tmp_path / "env")])
    assert files_seen.canonical(tmp_path / "env" / "lib" / "a.py").startswith(found)
    assert not files_seen.canonical(tmp_path / "realm").startswith(found)
