"""What a training process has to work with, for `torchrelay doctor`: run in one that was started like it, and ended after that."""

from __future__ import annotations

import platform
import sys
from typing import Any


def facts() -> dict[str, Any]:
    """Versions, backends, and what of torch the shim does not find."""
    found: dict[str, Any] = {"python": platform.python_version(), "executable": sys.executable}
    try:
        import torch
        import torch.distributed as dist
    except (ImportError, OSError) as e:  # OSError: a library of its own that cannot be loaded
        return found | {"torch_problem": f"{type(e).__name__}: {e}"}
    found |= {"torch": torch.__version__, "cuda": torch.version.cuda or "", "backends": _backends(dist)}
    try:
        from torchrelay.shim import transfer  # noqa: F401 - with all that they lean on
        from torchrelay.shim.bootstrap import torch_hooks  # noqa: F401 - with all that they lean on
        from torchrelay.shim.runtime import runtime  # noqa: F401 - with all that they lean on
    except Exception as e:  # noqa: BLE001 - whatever it is, it would end protection, and is told
        found["shim_problem"] = f"{type(e).__name__}: {e}"
    return found


def _backends(dist: Any) -> list[str]:
    if not dist.is_available():
        return []
    return [name for name in ("gloo", "nccl", "mpi", "ucc") if getattr(dist, f"is_{name}_available")()]
