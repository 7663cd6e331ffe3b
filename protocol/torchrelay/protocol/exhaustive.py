"""The end of a dispatch over a union or an enum that has to know each member."""

from __future__ import annotations

from typing import NoReturn

from torchrelay.protocol.errors import FatalError


def assert_never(value: NoReturn) -> NoReturn:
    """Have the type checker prove that all members are handled, like `typing.assert_never`, which Python 3.10 lacks.

    Raises FatalError if a member is left all the same: that is a fault of torchrelay.
    """
    raise FatalError(f"nothing here handles {value!r}")
