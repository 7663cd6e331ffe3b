"""Reads the NVIDIA GPUs of this machine as the agent does, and compares with nvidia-smi."""

from __future__ import annotations

import shutil
import subprocess

from sections import Found

from torchrelay.agent.health.gpus.nvidia import Nvidia, open_source
from torchrelay.agent.health.probes.source import AbsentError
from torchrelay.protocol.health import kinds as k

QUERY = "uuid,pci.bus_id,temperature.gpu,pcie.link.width.current,pcie.link.width.max"
CLOSE_C = 5.0
"""Between the two readings a GPU may get warmer or colder by this much."""


def readings(source: Nvidia, table: str) -> tuple[dict[str, str], list[str]]:
    """Return what the agent reads of each GPU, and what differs in `table`, which nvidia-smi printed."""
    read, found = {}, []
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
        read[f"{uuid} ({gpu.name})"] = str({kind: value for kind, value in reading.items() if value is not None})
        margin = reading.get(k.TEMPERATURE_MARGIN)
        if margin is not None and abs((gpu.limit_c - margin) - float(celsius)) > CLOSE_C:
            found.append(f"{uuid}: {gpu.limit_c - margin:g} C and not {celsius} C")
        share = reading.get(k.PCIE_WIDTH)
        if share is not None and width.isdigit() and lanes.isdigit() and abs(share - int(width) / int(lanes)) > 0.01:
            found.append(f"{uuid}: {share:g} of its lanes and not {width} of {lanes}")
    return read, found


def agree() -> Found:
    """Do the section: return what the agent reads, and where nvidia-smi disagrees."""
    try:
        source = open_source({})
    except AbsentError as e:
        return Found({"readings": f"no NVIDIA GPU to read: {e}"})
    command = shutil.which("nvidia-smi")
    if command is None:
        return Found({"readings": "the driver answers, but there is no nvidia-smi to compare with"})
    done = subprocess.run(
        [command, f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"], capture_output=True, text=True, check=True
    )
    assert isinstance(source, Nvidia)
    seen, problems = readings(source, done.stdout)
    return Found(seen, tuple(problems))
