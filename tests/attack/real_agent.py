"""`python -m attack.real_agent JSON`: the agent of a pod as it is, with its folder anywhere; JSON: the fields of its PodConfig."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path

from torchrelay.agent.pod.config import PodConfig
from torchrelay.agent.pod.node import PodNode

_PATHS = ("run_folder", "token_file", "kept")


async def main(fields: dict[str, object]) -> None:
    given = {name: Path(str(value)) if name in _PATHS else value for name, value in fields.items()}
    config = PodConfig(**{**given, "authority": str(given["authority"]).encode()})  # type: ignore[arg-type]  # as JSON has them
    await PodNode(config).run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    asyncio.run(main(json.loads(sys.argv[1])))
