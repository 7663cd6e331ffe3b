from __future__ import annotations

from pathlib import Path

from torchrelay.controller.machines.claims import Claims


def test_one_epoch_alone_follows_another(tmp_path: Path) -> None:
    first, second = Claims(tmp_path, "run", "job"), Claims(tmp_path, "run", "job")
    assert first.claim(2, 3)
    assert not second.claim(2, 4)
    assert first.claim(2, 3), "asked again"
    assert second.claim(3, 4)
    assert Claims(tmp_path, "run", "another").claim(2, 4)
    assert len(list(tmp_path.iterdir())) == 3


def test_what_cannot_be_written_is_not_had(tmp_path: Path) -> None:
    assert not Claims(tmp_path / "gone", "run", "job").claim(2, 3)
