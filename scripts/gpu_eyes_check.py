"""Reads the NVIDIA GPUs of this machine as the agent does, and compares with nvidia-smi. Without one it says so and succeeds.

make gpu-check
"""

from __future__ import annotations

import shutil
import subprocess
import sys

from torchrelay.agent.health.nvidia import Nvidia, open_source
from torchrelay.agent.health.source import AbsentError
from torchrelay.protocol.health import kinds as k

QUERY = "uuid,pci.bus_id,temperature.gpu,pcie.link.width.current,pcie.link.width.max"
CLOSE_C = 5.0
"""Between the two readings a GPU may get warmer or colder by this much."""


def differences(source: Nvidia, table: str) -> list[str]:
    """`table`: what nvidia-smi printed."""
    found = []
    seen = {device["device"]: device["pci"] for device in source.devices()}
    rows = {row[0]: row for row in ([cell.strip() for cell in line.split(",")] for line in table.splitlines() if line)}
    if seen.keys() != rows.keys():
        found.append(f"the agent sees {sorted(seen)}, nvidia-smi {sorted(rows)}")
    for uuid in seen.keys() & rows.keys():
        _, pci, celsius, width, lanes = rows[uuid]
        if seen[uuid].lower()[-12:] != pci.lower()[-12:]:
            found.append(f"{uuid}: at {seen[uuid]} and not {pci}")
        gpu = source.gpu(uuid)
        reading = gpu.read(with_links=True)
        print(f"{uuid} ({gpu.name}): { ({kind: value for kind, value in reading.items() if value is not None}) }")
        margin = reading.get(k.TEMPERATURE_MARGIN)
        if margin is not None and abs((gpu.limit_c - margin) - float(celsius)) > CLOSE_C:
            found.append(f"{uuid}: {gpu.limit_c - margin:g} C and not {celsius} C")
        share = reading.get(k.PCIE_WIDTH)
        if share is not None and width.isdigit() and lanes.isdigit() and abs(share - int(width) / int(lanes)) > 0.01:
            found.append(f"{uuid}: {share:g} of its lanes and not {width} of {lanes}")
    return found


def main() -> int:
    try:
        source = open_source({})
    except AbsentError as e:
        print(f"no NVIDIA GPU to read: {e}")
        return 0
    command = shutil.which("nvidia-smi")
    if command is None:
        print("the driver answers, but there is no nvidia-smi to compare with")
        return 0
    done = subprocess.run(
        [command, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True
    )
    assert isinstance(source, Nvidia)
    found = differences(source, done.stdout)
    print("\n".join(found) or "the agent and nvidia-smi agree")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
