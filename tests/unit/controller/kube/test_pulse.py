from __future__ import annotations

import pytest

from torchrelay.controller.kube import pulse
from torchrelay.controller.kube.pulse import STILL_S, Pulse


def test_a_loop_stands_still_from_its_last_beat_on(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(pulse.time, "monotonic", lambda: now_s[0])
    loop = Pulse()
    now_s[0] += 2 * STILL_S
    assert loop.still_s() == 0.0, "it has not begun yet, as in a replica that waits"
    loop.beat()
    now_s[0] += STILL_S + 1
    assert loop.still_s() == STILL_S + 1
    loop.beat()
    assert loop.still_s() == 0.0
