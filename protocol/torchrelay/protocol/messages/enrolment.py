"""What an agent in a pod asks before it has a stream: a certificate, and whether a launcher is to begin."""

from __future__ import annotations

from torchrelay.protocol.messages.message import message


@message(frozen=True)
class EnrolRequest:
    """An agent asks for a certificate. `token`: of the pod's service account, for our audience.

    `signing_request`: PKCS #10, as PEM.
    """

    token: str
    signing_request: bytes


@message(frozen=True)
class EnrolReply:
    """The agent's certificate. `certificate`: PEM; it names its holder's pod.

    `authorities`: whom to trust from here on, PEM one after the other: more than one while the cluster's authority is exchanged;
    empty: as before.
    """

    certificate: bytes
    authorities: bytes = b""


@message(frozen=True)
class LaunchRequest:
    """Is the launcher in the pod that asks to meet the others as always?"""


@message(frozen=True)
class LaunchReply:
    """Whether a launcher may start. `spare`: its job trains already, so that the processes that it starts are parked."""

    spare: bool
    reason: str
