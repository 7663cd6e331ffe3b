"""`python -m torchrelay.agent.worker_facts`: prints as JSON what a training process would have to work with.

It starts one as the agent does, with the shim's folder in front of PYTHONPATH, and without an agent to connect to.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from torchrelay.agent.processes.launch import shim_folders
from torchrelay.protocol import names
from torchrelay.protocol.errors import TorchrelayError

TIMEOUT_S = 120.0
"""A cold disk takes its time to give torch."""
_PROBE = """
import json, os, sys
let_in = "TORCHRELAY_ROOTS" not in os.environ
site, *roots = sys.argv[1:]
own = sys.modules.get("sitecustomize")
if not let_in:
    sys.path[:] = [entry for entry in sys.path if entry != site]
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
spec = ModuleSpec("torchrelay", None, is_package=True)
spec.submodule_search_locations = [os.path.join(root, "torchrelay") for root in roots]
sys.modules["torchrelay"] = module_from_spec(spec)
from torchrelay.shim.self_check import facts
where = getattr(own, "__file__", "") or ""
print(json.dumps(facts() | {"let_in": let_in, "loaded": "" if let_in else where, "shadowed": where if let_in else ""}))
"""


def worker_facts(python: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """`problem` says why there is nothing to tell. `environ`: the user's."""
    try:
        site, roots = shim_folders()
        own = {names.ENV_SOCKET, names.ENV_WORKER, names.ENV_TOKEN}
        env = {k: v for k, v in environ.items() if k not in own} | {
            "PYTHONPATH": os.pathsep.join(filter(None, (str(site), environ.get("PYTHONPATH")))),
            names.ENV_ROOTS: os.pathsep.join(map(str, roots)),
        }
        done = subprocess.run(
            [python, "-u", "-c", _PROBE, str(site), *map(str, roots)],
            capture_output=True,
            text=True,
            env=env,
            stdin=subprocess.DEVNULL,
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, TorchrelayError, subprocess.TimeoutExpired) as e:
        return {"problem": str(e)}
    lines = done.stdout.splitlines()
    try:
        found: dict[str, Any] = json.loads(lines[-1])
    except (ValueError, IndexError):
        said = done.stderr.strip().splitlines()
        return {"problem": f"{python} ended with exit code {done.returncode}: {said[-1] if said else 'no word'}"}
    return found


def main() -> int:
    print(json.dumps(worker_facts(sys.executable, os.environ)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
