"""The file that holds a job's secret. Controller and agents derive their certificates from it, so they read it alike."""

from __future__ import annotations

from pathlib import Path

from torchrelay.protocol.errors import UserError


def read_secret(path: Path) -> bytes:
    """Return the file's bytes unchanged: a secret with stripped bytes would make a certificate that differs from its peers'.

    Raises UserError if the file cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as e:
        raise UserError(f"the job's secret {path} cannot be read: {e}") from e
