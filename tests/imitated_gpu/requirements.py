"""Takes NVIDIA's packages out of what torch says it needs, and their headers out of their wheels.

    requirements.py VENV            # torch's metadata no longer names them; VENV gets torch.txt and headers.txt for pip
    requirements.py VENV --unpack   # the wheels in VENV/wheels: their headers go to VENV/include

As long as torch's metadata names NVIDIA's packages, pip fetches gigabytes of them with the next package that needs torch.
"""

from __future__ import annotations

import re
import sys
import zipfile
from importlib.metadata import distribution
from pathlib import Path

_REQUIRES = "Requires-Dist: "
# What the real ones include is in a further package, and the imitations use nothing of it.
_LEFT_OUT = ("cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h")


def separate(venv: Path) -> None:
    """Splits torch's requirements. Raises StopIteration if they name no NCCL or no CUDA."""
    torch = distribution("torch")
    metadata = Path(str(torch.locate_file(f"torch-{torch.version}.dist-info/METADATA")))
    lines = metadata.read_text().splitlines(keepends=True)
    for_linux = [line for line in lines if line.startswith(_REQUIRES) and "platform_system" in line]
    if for_linux:  # else it was done before
        named = [line.removeprefix(_REQUIRES).partition(";")[0].strip() for line in for_linux]
        nccl = next(line for line in named if line.startswith("nvidia-nccl"))
        cuda = next(match[1] for line in named if (match := re.match(r"cuda-toolkit.*==(\d+\.\d+)", line)))
        headers = [nccl, f"nvidia-cuda-runtime=={cuda}.*", f"nvidia-cuda-crt=={cuda}.*"]
        (venv / "headers.txt").write_text("\n".join(headers) + "\n")
        metadata.write_text("".join(line for line in lines if line not in for_linux))
    own = [line.removeprefix(_REQUIRES) for line in lines if line.startswith(_REQUIRES) and ";" not in line]
    (venv / "torch.txt").write_text("".join([*own, "numpy\n"]))


def unpack(venv: Path) -> None:
    """Writes the headers of all wheels."""
    for path in (venv / "wheels").glob("*.whl"):
        with zipfile.ZipFile(path) as wheel:
            for name in wheel.namelist():
                header = name.partition("/include/")[2]
                if header and not name.endswith("/"):
                    target = venv / "include" / header
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(b"#pragma once\n" if header in _LEFT_OUT else wheel.read(name))


if __name__ == "__main__":
    (unpack if "--unpack" in sys.argv else separate)(Path(sys.argv[1]))
