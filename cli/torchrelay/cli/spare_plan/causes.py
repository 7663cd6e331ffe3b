"""Why large training jobs are interrupted, how often, and what each cause takes away.

The counts are those of the Llama 3 405B pre-training: 419 unexpected interruptions in 54 days on 16,384 GPUs
(Llama Team, "The Llama 3 Herd of Models", arXiv 2407.21783, table 5). What a cause takes away is our reading of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

GPU_HOURS = 54 * 24 * 16_384
"""Of the run that the counts are from."""


class Takes(str, Enum):
    """What is gone until it is repaired."""

    DEVICE = "one GPU"
    NODE = "a node"
    NOTHING = "nothing"
    """The program or its surroundings failed: the same devices can go on."""


@dataclass(frozen=True)
class Cause:
    name: str
    count: int
    takes: Takes
    is_announced: bool = False
    """Whether one is told before, so that ranks can move while they live."""
    is_script: bool = False
    """Whether a spare would fail in the same way."""


CAUSES = (
    Cause("faulty GPU", 148, Takes.DEVICE),
    Cause("GPU memory (HBM3)", 72, Takes.DEVICE),
    Cause("software bug", 54, Takes.NOTHING, is_script=True),
    Cause("network switch or cable", 35, Takes.NODE),
    Cause("host maintenance", 32, Takes.NODE, is_announced=True),
    Cause("GPU SRAM", 19, Takes.DEVICE),
    Cause("GPU system processor", 17, Takes.DEVICE),
    Cause("network card", 7, Takes.NODE),
    Cause("NCCL watchdog timeout", 7, Takes.NOTHING),
    Cause("silent data corruption", 6, Takes.DEVICE),
    Cause("GPU thermal or sensor", 6, Takes.DEVICE, is_announced=True),
    Cause("SSD", 3, Takes.NODE),
    Cause("power supply", 3, Takes.NODE),
    Cause("server chassis", 2, Takes.NODE),
    Cause("IO expansion board", 2, Takes.NODE),
    Cause("dependency", 2, Takes.NOTHING, is_script=True),
    Cause("CPU", 2, Takes.NODE),
    Cause("system memory", 2, Takes.NODE),
)
