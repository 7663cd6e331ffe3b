from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from torchrelay.agent.connections.session import Session
from torchrelay.agent.figures import certificate_samples, room_samples, session_samples
from torchrelay.agent.pod.config import PodConfig
from torchrelay.protocol.messages import Finishing, FromWorker, Room, RoomLeft
from torchrelay.protocol.metrics.samples import Sample
from torchrelay.protocol.security.pod_tls import PodIdentity, SigningRequest, sign
from torchrelay.protocol.security.tls import Credentials


def told(samples: object) -> dict[tuple[str, ...], object]:
    return {(s.metric.name, *s.labels): s.value for s in samples if isinstance(s, Sample)}  # type: ignore[attr-defined]


def test_reports_wait_while_the_controller_is_away() -> None:
    async def test() -> None:
        credentials = Credentials.from_secret(b"0123456789abcdef", "agent")
        session = Session(credentials, "127.0.0.1:1", lambda: pytest.fail("nobody asks"), lambda order: None)
        session.send(FromWorker("n0.w0", Finishing(3)))
        found = told(session_samples(session, 2))
        assert found["torchrelay_agent_connected",] == 0
        assert found["torchrelay_agent_reports_waiting",] == 1
        assert found["torchrelay_agent_processes",] == 2
        assert found["torchrelay_agent_controller_away_seconds",] >= 0  # type: ignore[operator]

    asyncio.run(test())


def test_room_is_told_once_it_is_known() -> None:
    assert told(room_samples(None)) == {}
    left = RoomLeft(Room("/dev/shm", 5), (Room("/a", 7), Room("/b", 9)))
    assert told(room_samples(left)) == {
        ("torchrelay_agent_room_bytes", "journals"): 5,
        ("torchrelay_agent_room_bytes", "checkpoints"): 7,
    }


def test_a_pods_certificate_says_from_when_to_when_it_is_good() -> None:
    assert told(certificate_samples(None)) == {}
    authority, request = Credentials.from_secret(b"0123456789abcdef", "controller"), SigningRequest()
    leaf = request.leaf(sign(authority, request.pem(), PodIdentity("team", "a", "uid")))
    begins, ends = told(certificate_samples(leaf)).values()
    assert ends - begins == 7 * 3600, "an hour, and six before for clocks that differ"  # type: ignore[operator]


def test_an_agent_in_a_pod_answers_where_the_webhook_says(tmp_path: Path) -> None:
    names = ("NAMESPACE", "POD", "POD_UID", "POD_IP", "CONTROLLER", "ENROLL", "CA")
    environ = {f"TORCHRELAY_{name}": "x" for name in names}
    assert PodConfig.from_environ(environ).metrics_port == 0
    assert PodConfig.from_environ(environ | {"TORCHRELAY_METRICS_PORT": "29481"}).metrics_port == 29481
