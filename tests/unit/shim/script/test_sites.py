from __future__ import annotations

from types import CodeType

import pytest

from torchrelay.shim.instrument.rewrite import instrument
from torchrelay.shim.script import sites

SOURCE = b"""
def train(items):
    for item in items:
        pairs = (lambda x: x + 1, lambda x: x * 2)
        def inner():
            for p in pairs:
                yield p
    return pairs
one, two = (lambda y: [y]), (lambda y: (y,))
class A:
    def m(self):
        while self.m():
            pass
"""


@pytest.fixture(autouse=True)
def no_sites(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, empty in (("SITES", {}), ("INSTRUMENTED_FILES", set()), ("_modules", []), ("_plain", {})):
        monkeypatch.setattr(sites, name, empty)


def all_codes(code: CodeType) -> list[CodeType]:
    return [code, *(c for const in code.co_consts if isinstance(const, CodeType) for c in all_codes(const))]


def test_a_registered_file_is_known_with_its_sites() -> None:
    made = instrument(SOURCE, "dir/a.py")
    sites.register("dir/a.py", made.sites, made.code, made.plain)
    assert set(sites.SITES) == {"dir/a.py:3:4", "dir/a.py:12:8"}
    assert {"dir/a.py"} == sites.INSTRUMENTED_FILES


def test_every_function_is_found_as_python_compiles_it_also_where_two_look_alike() -> None:
    made = instrument(SOURCE, "dir/a.py", main=True)
    sites.register("dir/a.py", made.sites, made.code, made.plain)
    ours, plain = all_codes(made.code), all_codes(made.plain)
    assert len(ours) == len(plain) == 9
    assert [sites.plain_code(code) for code in ours] == plain
    assert ours[1].co_code != plain[1].co_code


def test_code_of_other_files_is_not_known() -> None:
    assert sites.plain_code(compile("1", "b.py", "exec")) is None


def test_a_file_that_holds_something_else_than_when_another_process_loaded_it_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("TEXTS", "LOADED_FROM"):
        monkeypatch.setattr(sites, name, {})
    for file, text in (("train.py", b"1"), ("model.py", b"1")):
        sites.note_text(file, text)
    recorded = dict(sites.TEXTS)
    sites.note_text("model.py", b"2")
    assert sites.changed_since(recorded | {"late.py": 1}) == ["model.py"]
    assert sites.changed_since({}) == [], "which files the other process has loaded is not known"
