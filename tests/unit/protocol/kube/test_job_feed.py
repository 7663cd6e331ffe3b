"""The lines between the controller of a cluster and its dashboard."""

from __future__ import annotations

import pytest

from torchrelay.protocol.errors import FrameError
from torchrelay.protocol.kube import job_feed as f
from torchrelay.protocol.messages import JobEvent

LINES = (
    f.FeedLeader("c-1", "c-2"),
    f.JobSeen("team", "llama", "3f9a1c", "PyTorchJob/llama", True),
    f.JobTold("team", "llama", JobEvent(1.5, "log", '{"text":"grüß"}')),
    f.JobGone("team", "llama"),
    f.Barred((f.BarredSubject("q", "gpu-1", "", "the fan is loud"),)),
)


@pytest.mark.parametrize("line", LINES, ids=lambda line: type(line).__name__)
def test_a_line_comes_out_as_it_went_in(line: f.FeedLine) -> None:
    packed = f.pack(line)
    assert packed.endswith(b"\n")
    assert packed.count(b"\n") == 1
    assert f.parse(packed) == line


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b"null", b'{"kind":"Other"}', b'{"kind":"JobGone"}', b"\xff"])
def test_what_is_no_line_is_refused(text: bytes) -> None:
    with pytest.raises(FrameError):
        f.parse(text)


def test_who_leads_is_the_holder_of_the_lease() -> None:
    assert f.FeedLeader("c-1", "c-1").leads
    assert not f.FeedLeader("c-1", "c-2").leads
    assert not f.FeedLeader("", "").leads
