from __future__ import annotations

import base64
import json
import zlib

import pytest

from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.kube.holders import pack_holders, unpack_holders


def packed(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode())).decode()


def test_what_is_packed_is_unpacked() -> None:
    text = pack_holders({1: "b:1.1", 0: "a:1.1"}, lambda agent: f"node-of-{agent}")
    assert unpack_holders(text) == [(0, "a:1.1", "node-of-a"), (1, "b:1.1", "node-of-b")]


@pytest.mark.parametrize("text", ["", "no base64", packed("{"), packed(json.dumps([1])), packed("[" * 100_000)])
def test_what_nobody_has_packed_is_refused(text: str) -> None:
    with pytest.raises(FrameError, match="not the holders of ranks"):
        unpack_holders(text)
