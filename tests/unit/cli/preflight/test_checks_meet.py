"""What a check goes on to know while it waits for others, of which some come and some end before it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from torchrelay.cli.preflight.checks_meet import _later
from torchrelay.cli.preflight.facts import Compared

PLACE = SimpleNamespace(others=("n1", "n2"))
NOBODY = Compared(missing=("n1", "n2"))
ONE = Compared("10.0.0.1:7", nodes=("n0", "n1"), refused=("n1 has another script",), missing=("n2",))


@pytest.mark.parametrize(
    ("before", "heard", "known"),
    [
        pytest.param(NOBODY, Compared(), NOBODY, id="nobody answers yet"),
        pytest.param(NOBODY, Compared("10.0.0.1:7", nodes=("n0",)), ("n1", "n2"), id="the first one opens"),
        pytest.param(NOBODY, Compared("10.0.0.1:7", nodes=("n0", "n1")), ("n2",), id="another one comes"),
        pytest.param(ONE, Compared(), ONE, id="all others have ended"),
        pytest.param(ONE, Compared("10.0.0.1:7", nodes=("n0",)), ONE, id="one that was compared has ended"),
        pytest.param(ONE, Compared("10.0.0.1:7", nodes=("n0", "n1", "n2")), (), id="the last one comes"),
    ],
)
def test_what_was_told_before_is_not_forgotten_when_others_end(
    before: Compared, heard: Compared, known: Compared | tuple[str, ...]
) -> None:
    found = _later(before, heard, PLACE)  # type: ignore[arg-type]  # it is asked for the others alone
    if isinstance(known, Compared):
        assert found is known or (found.address, found.missing) == (known.address, known.missing)
    else:
        assert (found.nodes, found.missing) == (heard.nodes, known)
