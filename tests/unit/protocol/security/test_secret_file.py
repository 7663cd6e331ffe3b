from __future__ import annotations

from pathlib import Path

import pytest

from torchrelay.protocol.errors import UserError
from torchrelay.protocol.security.secret_file import read_secret


@pytest.mark.parametrize("secret", [b"\n" + b"x" * 31, b"x" * 31 + b" ", b"\t" * 32, b"x" * 32])
def test_a_secret_is_what_the_file_holds_with_its_first_and_last_bytes(secret: bytes, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(secret)
    assert read_secret(path) == secret


def test_a_secret_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"secret .*none cannot be read: .*No such file"):
        read_secret(tmp_path / "none")
