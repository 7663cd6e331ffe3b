"""How an agent in a pod gets its certificate."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EnrolRequest:
    """`token`: of the pod's service account, for our audience; `signing_request`: PKCS #10, as PEM."""

    token: str
    signing_request: bytes


@dataclass(frozen=True)
class EnrolReply:
    """`certificate`: PEM; it says which pod its holder is."""

    certificate: bytes
