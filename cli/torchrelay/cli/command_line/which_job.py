"""Which job a command is about: it is named as an argument, or with --run, which says the same."""

from __future__ import annotations

from torchrelay.protocol.errors import UserError


def which_job(named: str | None, option: str | None) -> str | None:
    """Return the id or name of the wanted job; None if none is named. Raises UserError if two are named."""
    if named is not None and option is not None and named != option:
        raise UserError(f"{named} and --run {option} are two jobs: name one of them")
    return named if named is not None else option
