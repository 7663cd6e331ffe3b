"""`python -m torchrelay.agent.install_shim FOLDER`: puts shim and protocol where a training container can load them."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from torchrelay.agent.processes.launch import shim_folders
from torchrelay.protocol.errors import TorchrelayError
from torchrelay.protocol.names import EXIT_USAGE


def install(target: Path) -> None:
    """`target/site` goes onto PYTHONPATH, `target/root` is what TORCHRELAY_ROOTS names. Raises OSError, FatalError."""
    site, roots = shim_folders()
    for folder, name in (
        (site, target / "site"),
        *((r / "torchrelay" / p, target / "root/torchrelay" / p) for r, p in _parts(roots)),
    ):
        shutil.copytree(folder, name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))


def _parts(roots: list[Path]) -> list[tuple[Path, str]]:
    return [(r, part) for r in roots for part in ("shim", "protocol") if (r / "torchrelay" / part).is_dir()]


def main() -> int:
    if len(sys.argv) != 2:
        print(f"usage: {sys.argv[0]} FOLDER", file=sys.stderr)
        return EXIT_USAGE
    try:
        install(Path(sys.argv[1]))
    except (OSError, TorchrelayError) as e:
        print(f"torchrelay: error: the shim cannot be installed: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
