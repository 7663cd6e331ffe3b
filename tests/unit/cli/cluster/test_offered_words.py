"""What kubectl offers behind `kubectl torchrelay`, as `kubectl_complete-torchrelay` prints it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from support.http_api import HttpApi

from torchrelay.cli.cluster.offered_words import NO_FILES, main

Offered = Callable[..., list[str]]


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Offered:
    """The words that are offered in place of the last one that was typed."""
    for name in ("_TORCHRELAY_PLUGIN_COMPLETE", "_TYPER_COMPLETE_ARGS", "_TYPER_COMPLETE_FISH_ACTION", "COLUMNS"):
        monkeypatch.setenv(name, "20")  # so that it is taken back; and a terminal is narrow

    def complete(*words: str) -> list[str]:
        main(words)
        *lines, last = capsys.readouterr().out.splitlines()
        assert last == NO_FILES
        return [line.partition("\t")[0] for line in lines]

    return complete


def test_kubectl_finds_the_program_by_its_name() -> None:
    project = (Path(__file__).parents[4] / "pyproject.toml").read_text()
    assert 'kubectl_complete-torchrelay = "torchrelay.cli.cluster.offered_words:main"' in project


def test_commands_and_options_are_offered(offered: Offered) -> None:
    assert {"status", "migrate", "drain", "spares", "quarantine"} <= set(offered(""))
    assert offered("sp") == ["spares"]
    assert offered("spares", "") == ["list", "add"]
    assert offered("status", "--na") == ["--namespace"]


def test_what_each_means_is_told_beside_it(offered: Offered, capsys: pytest.CaptureFixture[str]) -> None:
    main(["drai"])
    word, _, meaning = capsys.readouterr().out.splitlines()[0].partition("\t")
    assert word == "drain"
    assert meaning.startswith("Move all ranks of all jobs")
    assert all(word.startswith("--") for word in offered("report", "--"))  # what one means is on its line, however long


def test_names_of_the_cluster_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offered: Offered) -> None:
    api = HttpApi()
    for name in ("llama", "lamp", "gpt"):
        api.put("trainingjobs", {"metadata": {"name": name, "namespace": "team"}, "spec": {}})
    api.put("migrations", {"metadata": {"name": "llama-3f9a1c", "namespace": "team"}, "spec": {"job": "llama"}})
    api.put("quarantines", {"metadata": {"name": "gpu-1"}, "spec": {"node": "gpu-1"}})

    async def ask() -> list[list[str]]:
        async with api.served(tmp_path) as config:
            monkeypatch.setenv("KUBECONFIG", str(config))
            typed = (
                ("status", "-n", "team", "l"),
                ("status", "-n", "other", "l"),
                ("explain", "-n", "team", ""),
                ("quarantine", "clear", ""),
            )
            return [await asyncio.to_thread(offered, *words) for words in typed]

    assert asyncio.run(ask()) == [["lamp", "llama"], [], ["llama-3f9a1c"], ["gpu-1"]]


def test_without_a_cluster_no_name_is_offered_and_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offered: Offered
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert offered("status", "") == []
