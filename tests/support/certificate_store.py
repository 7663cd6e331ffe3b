"""A place for the webhook's certificates, in memory."""

from __future__ import annotations

from torchrelay.webhook.tls.certificates import Data
from torchrelay.webhook.tls.stores import Stored


class FakeStore:
    """A Secret and a caBundle. Each of `rivals` is written just before one write of ours. `deaf`: nothing can be published."""

    def __init__(self) -> None:
        self.data: Data = {}
        self.version = 0
        self.published: list[bytes] = []
        self.rivals: list[Data] = []
        self.deaf = False

    async def read(self) -> Stored:
        return Stored(dict(self.data), str(self.version) if self.version else "")

    async def write(self, data: Data, version: str) -> bool:
        if self.rivals:
            self.data, self.version = self.rivals.pop(0), self.version + 1
        if version != (str(self.version) if self.version else ""):
            return False
        self.data, self.version = data, self.version + 1
        return True

    async def publish(self, authorities: bytes) -> None:
        if self.deaf:
            raise ConnectionError("nobody listens")
        self.published.append(authorities)
